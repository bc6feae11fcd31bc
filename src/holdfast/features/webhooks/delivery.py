"""The handler of ``webhook.deliver``: post a signed message to a webhook, and log the result.

Delivery is at least once: a worker that dies between the response and the end of the job sends the message again, with
the same id and body and a new signature. The response decides the outcome even if it cannot be logged. The URL comes
from the webhook only: a job cannot name one, so a caller that may enqueue cannot reach, or sign for, a receiver that no
administrator has set up.
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
from holdfast.engine.retry import http_date, retry_after_delay
from holdfast.errors import EgressRefused, HoldfastError, InvalidSetting, StoreUnavailable
from holdfast.features.connectors.http_request import Outbound
from holdfast.features.webhooks import signing
from holdfast.features.webhooks.model import (
    DELIVER,
    DELIVERY_TIMEOUT,
    EXCERPT,
    MAX_REFUSALS,
    MAX_RETRY_AFTER,
    PING,
    TRUSTED_SOURCES,
    Webhook,
    WebhookDelivery,
    is_reserved,
    message_of,
    verdict_of,
)
from holdfast.outgoing import Answer, Outgoing, send
from holdfast.stores.flow import Steps, flow
from holdfast.stores.port import Caller
from holdfast.stores.requests import new_id
from holdfast.worker.shutdown import Ended

USER_AGENT: Final = "Holdfast-Webhooks/1"
RESPONSE_LIMIT: Final = 16_384
"""Bytes of a response that are read: only its status and its first characters matter."""
MAX_ATTEMPTS: Final = 100
REFUSALS: Final = frozenset({"webhook_refused", EgressRefused.default_code})
log = logging.getLogger("holdfast.worker")


def deliverer(reach: Outbound) -> Callable[..., Awaitable[dict[str, Any]]]:
    """The handler, which sends with the policy and the secrets of ``reach``."""

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
        target = await client.arun(client.store.webhooks.get(webhook, tenant))
        if target is None:
            raise Cancel(f"webhook {webhook} no longer exists")
        if not target.enabled and type != PING:
            raise Reject("webhook_disabled", f"webhook {webhook} is disabled: {target.disabled_reason}")
        if event is not None or message is not None or is_reserved(type):
            await _refuse_forged(ctx)
        payload = {"event": event, "type": type, "data": data, "message": message, "at": at}
        id, message_type, body = message_of(payload, ctx.job_id, ctx.created_at)
        attempt = _Attempt(ctx, target, id, message_type)
        try:
            more = {} if reach.outgoing_headers is None else reach.outgoing_headers(ctx)
            headers = {**more, "Content-Type": "application/json", "User-Agent": USER_AGENT}
            headers |= signing.sign(await _secrets(target, reach), id, int(time.time()), body)
            policy = replace(reach.policy, redirects=0, cut=True, max_bytes=RESPONSE_LIMIT)
            response = await send(Outgoing("POST", target.url, headers, body, DELIVERY_TIMEOUT), policy)
        except HoldfastError as error:
            raise await attempt.failed(error) from None
        return await attempt.finish(response)

    deliver.__name__ = DELIVER.replace(".", "_")
    return deliver


async def _refuse_forged(ctx: Context) -> None:
    """Only subscriptions, and callers that may resend, send events of jobs, schedules and webhooks: a receiver that has
    verified the signature trusts that they happened."""
    job = await ctx._run.session.arun(ctx._run.session.store.jobs.get(ctx.job_id, ctx.tenant))
    if job is None or job.source_system not in TRUSTED_SOURCES:
        raise Reject(
            "webhook_not_yours", "an enqueued job can send messages of its own types only, not those of Holdfast"
        )


async def _secrets(webhook: Webhook, reach: Outbound) -> list[str]:
    """The tenant's secrets, which are redacted from now on. A missing secret is retried: it may be set meanwhile."""
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
def _disable(caller: Caller, webhook: Webhook, actor: str) -> Steps[bool]:
    """Disable a webhook whose receiver is gone; False if it has another URL by now."""
    current = yield from caller.store.webhooks.get(webhook.name, webhook.tenant).start()
    if current is None or (current.id, current.url) != (webhook.id, webhook.url):
        return False
    reason = "the receiver responded that it is gone (410)"
    return (yield from caller.store.webhooks.disable(webhook.name, reason, actor, webhook.tenant).start())


class _Attempt:
    def __init__(self, ctx: Context, webhook: Webhook, message: str, type: str) -> None:
        self._ctx, self._webhook, self._message, self._type = ctx, webhook, message, type
        self._started = time.monotonic()

    async def finish(self, response: Answer) -> dict[str, Any]:
        """Log the response, and return the result of the job or raise how the attempt ended."""
        ctx, name = self._ctx, self._webhook.name
        verdict = verdict_of(response.status, await self._refused_before())
        await self.log(response.status, verdict.code, response.body[: 4 * EXCERPT].decode("utf-8", "replace"))
        if verdict.action == "delivered":
            return {"message": self._message, "status": response.status}
        reason = f"{name} responded with {response.status}"
        if verdict.action == "gone":
            if await ctx._run.session.arun(_disable(ctx._run.session, self._webhook, f"{DELIVER} {ctx.job_id}")):
                raise Reject("webhook_gone", f"{reason}: it is gone, and the webhook is disabled")
            reason = f"{reason}, and has another URL by now"
        since = http_date(response.header("date")) or datetime.now(UTC)
        after = retry_after_delay(response.header("retry-after"), since, MAX_RETRY_AFTER)
        raise Ended(
            Failed(verdict.code or "webhook_failed", reason, no_sooner=after, final=verdict.action == "give_up")
        )

    async def failed(self, error: HoldfastError) -> Ended:
        """How an attempt without a response ended. One that the policy refuses, or with an invalid URL, has only a few
        more attempts, in case the configuration is corrected."""
        final = isinstance(error, EgressRefused) and await self._refused_before() + 1 >= MAX_REFUSALS
        await self.log(None, error.code, error.message)
        return Ended(Failed(error.code, error.message, final=final))

    async def _refused_before(self) -> int:
        """How many attempts of this job were refused; those without a response are not counted."""
        if self._ctx.retries + 1 < MAX_REFUSALS:
            return self._ctx.retries
        try:
            store = self._ctx._run.session.store
            query = store.webhooks.deliveries(self._webhook.id, self._ctx.tenant, MAX_ATTEMPTS, message=self._message)
            attempts = await self._ctx._run.session.arun(query)
        except StoreUnavailable:
            return 0
        return sum(each.job_id == self._ctx.job_id and each.error_code in REFUSALS for each in attempts)

    async def log(self, status: int | None, error_code: str | None, text: str) -> None:
        """Record the attempt, also a successful one."""
        excerpt = one_line(self._ctx._run.redact(text, EXCERPT), EXCERPT) or None
        took = int((time.monotonic() - self._started) * 1000)
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
        except StoreUnavailable as error:  # the response of the receiver counts all the same
            log.warning(
                "Delivery of message %s to %s could not be logged: %s",
                self._message,
                self._webhook.name,
                error.message,
            )
