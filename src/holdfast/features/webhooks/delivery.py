"""``webhook.deliver`` (JF-9): post a signed message to a webhook, and keep what became of it.

At least once: whoever dies between the answer and the end of the job sends the same message again, with the same id and
the same bytes, and a signature of that moment. What was answered stands, also where the note of it is lost. Nothing but
the webhook says where to: a job cannot name a URL, so whoever may enqueue cannot reach or sign for anything that an
administrator has not set up.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Final

from holdfast.context import Context
from holdfast.engine.outcome import Cancel, Failed, Reject
from holdfast.engine.redaction import one_line
from holdfast.engine.retry import asked_delay, http_date
from holdfast.errors import EgressRefused, HoldfastError, InvalidSetting, StoreUnavailable
from holdfast.features.connectors.outbound import Outbound
from holdfast.features.webhooks import signing
from holdfast.features.webhooks.model import (
    DELIVER,
    DELIVERY_TIMEOUT,
    EXCERPT,
    LONGEST_WAIT,
    MAKERS,
    PATIENCE,
    PING,
    Webhook,
    WebhookDelivery,
    fate_of,
    is_ours,
    message_of,
)
from holdfast.outgoing import Answer, Outgoing, send
from holdfast.stores.flow import Steps, flow
from holdfast.stores.ids import new_id
from holdfast.stores.port import Caller
from holdfast.worker.shutdown import Ended

USER_AGENT: Final = "Holdfast-Webhooks/1"
ANSWER_LIMIT: Final = 16_384
"""Nothing of an answer matters but its status and its first words."""
TRIES: Final = 100
REFUSALS: Final = frozenset({"webhook_refused", EgressRefused.default_code})
log = logging.getLogger("holdfast.worker")


def deliverer(reach: Outbound) -> Callable[..., Awaitable[dict[str, Any]]]:
    """The handler, with what the app reaches others by."""

    async def deliver(
        ctx: Context,
        webhook: str,
        event: dict[str, Any] | None = None,
        type: str | None = None,
        data: dict[str, Any] | None = None,
        message: str | None = None,
        at: str | None = None,
    ) -> dict[str, Any]:
        client, tenant = ctx._run.session, ctx.tenant
        found = await client.arun(client.store.webhooks.get(webhook, tenant))
        if found is None:
            raise Cancel(f"there is no webhook {webhook} any more")
        if not found.enabled and type != PING:
            raise Reject("webhook_disabled", f"webhook {webhook} is disabled: {found.disabled_reason}")
        if event is not None or message is not None or is_ours(type):
            await _refuse_forged(ctx)
        given = {"event": event, "type": type, "data": data, "message": message, "at": at}
        id, kind, body = message_of(given, ctx.job_id, ctx.created_at)
        attempt = _Attempt(ctx, found, id, kind)
        try:
            more = {} if reach.outgoing_headers is None else reach.outgoing_headers(ctx)
            headers = {**more, "Content-Type": "application/json", "User-Agent": USER_AGENT}
            headers |= signing.sign(await _secrets(found, reach), id, int(time.time()), body)
            policy = replace(reach.policy, redirects=0, cut=True, max_bytes=ANSWER_LIMIT)
            answer = await send(Outgoing("POST", found.url, headers, body, DELIVERY_TIMEOUT), policy)
        except HoldfastError as error:
            raise await attempt.unsent(error) from None
        return await attempt.judged(answer)

    deliver.__name__ = DELIVER.replace(".", "_")
    return deliver


async def _refuse_forged(ctx: Context) -> None:
    """What happened to jobs, schedules and webhooks is told by subscriptions, and once more by whoever may resend it:
    a receiver that has checked the signature believes that it did happen."""
    job = await ctx._run.session.arun(ctx._run.session.store.jobs.get(ctx.job_id, ctx.tenant))
    if job is None or job.source_system not in MAKERS:
        raise Reject(
            "webhook_not_yours", "a job that was enqueued sends messages with a type of its own, and none of Holdfast's"
        )


async def _secrets(webhook: Webhook, reach: Outbound) -> list[str]:
    """Their values, the tenant's own; whatever is written from now on is without them. One that is not there yet may
    come while there are tries left."""
    values = []
    for name in webhook.secrets:
        try:
            value = await reach.secret(name, webhook.tenant)
        except Reject as missing:
            raise InvalidSetting(str(missing), code="secret_missing") from None
        reach.redact.know(value.removeprefix(signing.PREFIX))
        values.append(value)
    return values


@flow()
def _disabled(caller: Caller, asked: Webhook, actor: str) -> Steps[bool]:
    """Whether it was, and is disabled: one that has another address by now is not gone because the old one is."""
    found = yield from caller.store.webhooks.get(asked.name, asked.tenant).start()
    if found is None or (found.id, found.url) != (asked.id, asked.url):
        return False
    reason = "the receiver says it is gone (410)"
    return (yield from caller.store.webhooks.disable(asked.name, reason, actor, asked.tenant).start())


class _Attempt:
    def __init__(self, ctx: Context, webhook: Webhook, message: str, type: str) -> None:
        self._ctx, self._webhook, self._message, self._type = ctx, webhook, message, type
        self._begun = time.monotonic()

    async def judged(self, answer: Answer) -> dict[str, Any]:
        ctx, name = self._ctx, self._webhook.name
        fate = fate_of(answer.status, await self._refused_before())
        await self.note(answer.status, fate.code, answer.body[: 4 * EXCERPT].decode("utf-8", "replace"))
        if fate.what == "delivered":
            return {"message": self._message, "status": answer.status}
        says = f"{name} answered {answer.status}"
        if fate.what == "gone":
            if await ctx._run.session.arun(_disabled(ctx._run.session, self._webhook, f"{DELIVER} {ctx.job_id}")):
                raise Reject("webhook_gone", f"{says}: it is gone, and is disabled")
            says = f"{says}, and has another address by now"
        since = http_date(answer.header("date")) or datetime.now(UTC)
        after = asked_delay(answer.header("retry-after"), since, LONGEST_WAIT)
        raise Ended(Failed(fate.code or "webhook_failed", says, no_sooner=after, final=fate.what == "given_up"))

    async def unsent(self, error: HoldfastError) -> Ended:
        """Where policy forbids it, or the URL is none, a few more tries are enough: somebody may put it right."""
        final = isinstance(error, EgressRefused) and await self._refused_before() + 1 >= PATIENCE
        await self.note(None, error.code, error.message)
        return Ended(Failed(error.code, error.message, final=final))

    async def _refused_before(self) -> int:
        """How often this job was refused: what was tried while nobody was there is not counted."""
        if self._ctx.retries + 1 < PATIENCE:
            return self._ctx.retries
        try:
            store = self._ctx._run.session.store
            found = store.webhooks.deliveries(self._webhook.id, self._ctx.tenant, TRIES, message=self._message)
            tried = await self._ctx._run.session.arun(found)
        except StoreUnavailable:
            return 0
        return sum(each.job_id == self._ctx.job_id and each.error_code in REFUSALS for each in tried)

    async def note(self, status: int | None, error_code: str | None, said: str) -> None:
        """One line of the log. It is kept also of what went well."""
        excerpt = one_line(self._ctx._run.redact(said, EXCERPT), EXCERPT) or None
        took = int((time.monotonic() - self._begun) * 1000)
        entry = WebhookDelivery(
            new_id(),
            self._ctx.tenant,
            self._webhook.id,
            self._message,
            self._type,
            self._ctx.job_id,
            self._ctx.attempt,
            status,
            error_code,
            took,
            excerpt,
        )
        try:
            session = self._ctx._run.session
            await session.arun(session.store.webhooks.note_delivery(entry, self._ctx.tenant))
        except StoreUnavailable as error:  # what the receiver has said is true all the same
            log.warning(
                "Delivery of message %s to %s could not be logged: %s",
                self._message,
                self._webhook.name,
                error.message,
            )
