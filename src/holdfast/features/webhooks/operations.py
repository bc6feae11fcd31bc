"""``app.webhooks``: URLs that receive events, and the deliveries to them."""

from __future__ import annotations

from typing import Annotated, Any, Final, Unpack

from holdfast.engine.declared import Help, http
from holdfast.engine.ids import parse_id
from holdfast.engine.names import check_whole
from holdfast.engine.operation import Program, awaited, operation
from holdfast.engine.settlement import storable
from holdfast.errors import Conflict, InvalidInput, NotFound, Refused
from holdfast.features.webhooks.model import (
    PING,
    DeliveryOptions,
    OfKind,
    Secrets,
    Url,
    Wants,
    Webhook,
    WebhookChanges,
    WebhookDelivery,
    WebhookDraft,
    check_tenant,
    check_webhook_name,
    delivery_job,
)
from holdfast.features.webhooks.signing import MAX_SECRETS
from holdfast.stores.flow import Steps, flow, run
from holdfast.stores.namespace import StoreNamespace
from holdfast.stores.port import Caller
from holdfast.stores.requests import new_id

_Webhooks = list[Webhook]  # inside the class, ``list`` is an operation
_Deliveries = list[WebhookDelivery]
PAGE: Final = 201
"""Maximum length of a list of attempts: a page, and one more."""


Name = Annotated[str, Help("The webhook's name.", "NAME")]
MessageId = Annotated[str, Help("The message id: msg_….", "MESSAGE", example="msg_01a1de74eb8c70f1843bcac5f6817387")]


class Webhooks(StoreNamespace):
    """Webhooks send events to URLs. A webhook and its subscriptions are written in one transaction."""

    @operation
    @http(
        "POST /webhooks",
        "admin",
        tenant="one",
        status=201,
        example={"name": "ops", "url": "https://ops.example.com/hooks", "secrets": ["OPS_HOOK"]},
    )
    def add(
        self,
        name: Name,
        url: Url,
        *,
        secrets: Secrets,
        wants: Wants = None,
        kind: OfKind = None,
        **options: Unpack[DeliveryOptions],
    ) -> Program[Webhook]:
        """Add a webhook: post signed messages (Standard Webhooks) to a URL. A name that is taken is refused.

        ``app.webhooks.add("ops", "https://…", secrets="OPS_HOOK", wants=["job.dead_letter", "job.crashed"])`` sends the
        events it ``wants`` to ``url`` from now on. ``secrets`` are names, newest first: ``HOLDFAST_SECRET_OPS_HOOK`` in
        the environment of the workers, or one of the secret provider; a message is signed with each. ``wants`` are
        events of jobs and of the application, ``*`` is any; by default those that need attention. ``kind`` and
        ``of_queue`` are those of the jobs the events are about. The other options apply to its deliveries.
        """
        check_tenant(self._tenant)
        return (yield from run(_add(self._caller, WebhookDraft.of(name, url, secrets, wants, kind, options))))

    aadd = awaited(add)

    @operation
    @http("PUT /webhooks/{name}", "admin", tenant="one", example={"queue": "hooks", "retry": {"max_attempts": 8}})
    def set(self, name: Name, **changes: Unpack[WebhookChanges]) -> Program[Webhook]:
        """Change the URL, the secrets, the events or the deliveries of a webhook: only what is given. Messages that are
        under way are delivered.

        ``app.webhooks.set("ops", queue="hooks", retry=None)``: None restores the default.
        """
        return (yield from run(_change(self._caller, self._own(name), changes)))

    aset = awaited(set)

    @operation
    @http(
        "POST /webhooks/{name}/rotate-secret",
        "admin",
        tenant="one",
        name="rotate_secret",
        example={"secret": "OPS_HOOK_2", "keep": 1},
    )
    def rotate_secret(
        self,
        name: Name,
        secret: Annotated[str, Help("The name of the new secret.", "VARIABLE")],
        *,
        keep: Annotated[int, Help("Number of old secrets that still sign.", low=0, high=MAX_SECRETS - 1)] = 1,
    ) -> Program[Webhook]:
        """Add a signing secret. Old ones still sign, so that receivers can change theirs in time."""
        return (yield from run(_rotate(self._caller, self._own(name), secret, keep)))

    arotate_secret = awaited(rotate_secret)

    @operation
    @http("GET /webhooks", "read")
    def list(self) -> Program[_Webhooks]:
        """List the webhooks by name, with their URLs and event types."""
        return (yield from run(self._store.webhooks.list(self._tenant)))

    alist = awaited(list)

    @operation
    @http("GET /webhooks/{name}", "read")
    def get(self, name: Name) -> Program[Webhook]:
        """Show a webhook."""
        return (yield from run(_read(self._caller, check_webhook_name(name))))

    aget = awaited(get)

    @operation
    @http("POST /webhooks/{name}/disable", "admin", tenant="one", example={"reason": "too many requests"})
    def disable(self, name: Name, *, reason: Annotated[str, Help("The reason.", longest=2_000)]) -> Program[Webhook]:
        """Disable a webhook. Events that arrive meanwhile are kept until it is enabled."""
        return (yield from run(_disable(self._caller, self._own(name), reason)))

    adisable = awaited(disable)

    @operation
    @http("POST /webhooks/{name}/enable", "admin", tenant="one", example={"skip": False})
    def enable(
        self,
        name: Name,
        *,
        skip: Annotated[bool, Help("Skip events that arrived while the webhook was disabled.")] = False,
    ) -> Program[Webhook]:
        """Enable a webhook and send the events that arrived meanwhile."""
        return (yield from run(_enable(self._caller, self._own(name), skip)))

    aenable = awaited(enable)

    @operation
    @http("DELETE /webhooks/{name}", "admin", tenant="one")
    def remove(self, name: Name) -> Program[None]:
        """Remove a webhook and the log of its deliveries. Deliveries under way are cancelled."""
        yield from run(_remove(self._caller, self._own(name)))

    aremove = awaited(remove)

    @operation
    @http("POST /webhooks/{name}/test", "operate", tenant="one", status=202, result="job_id")
    def test(self, name: Name) -> Program[str]:
        """Send a ping to a webhook, also while it is disabled. Returns the id of the job that sends it."""
        return (yield from run(_ping(self._caller, self._own(name))))

    atest = awaited(test)

    @operation
    @http("GET /webhooks/{name}/deliveries", "read", name="list_webhook_deliveries", page="id")
    def deliveries(
        self,
        name: Name,
        *,
        failed: Annotated[bool, Help("Only failed attempts.")] = False,
        message: Annotated[str | None, Help("Only attempts for this message.", "ID")] = None,
        before: Annotated[str | None, Help("Next page: only attempts before this id.", "ID")] = None,
        limit: Annotated[int, Help("Maximum number of results.", low=1, high=PAGE - 1)] = 50,
    ) -> Program[_Deliveries]:
        """List delivery attempts of a webhook, newest first."""
        return (yield from run(_log(self._caller, check_webhook_name(name), limit, before, message, failed)))

    adeliveries = awaited(deliveries)

    @operation
    @http("POST /webhooks/{name}/resend", "operate", tenant="one", status=202, result="job_id")
    def resend(self, name: Name, message: MessageId) -> Program[str]:
        """Send a message again, unchanged and under the same id. Returns the id of the job that sends it."""
        return (yield from run(_resend(self._caller, self._own(name), message)))

    aresend = awaited(resend)

    def _own(self, name: str) -> str:
        check_tenant(self._tenant)
        return check_webhook_name(name)


@flow(writes=False)
def _read(caller: Caller, name: str) -> Steps[Webhook]:
    return (yield from _get(caller, name))


def _get(caller: Caller, name: str) -> Steps[Webhook]:
    webhook = yield from caller.store.webhooks.get(name, caller.tenant).start()
    if webhook is None:
        raise _missing(name)
    return webhook


@flow()
def _add(caller: Caller, draft: WebhookDraft) -> Steps[Webhook]:
    if not (yield from caller.store.webhooks.add(draft, new_id(), caller.actor, caller.tenant).start()):
        raise Conflict(f"webhook {draft.name} already exists", code="webhook_exists")
    yield from _subscribe(caller, draft)
    return (yield from _get(caller, draft.name))


@flow()
def _change(caller: Caller, name: str, changes: WebhookChanges) -> Steps[Webhook]:
    was = yield from _get(caller, name)
    return (yield from _replace(caller, was, WebhookDraft.changed(was, changes)))


@flow()
def _rotate(caller: Caller, name: str, secret: str, keep: int) -> Steps[Webhook]:
    if not 0 <= check_whole(keep, "keep") < MAX_SECRETS:
        raise InvalidInput(f"keep must be from 0 to {MAX_SECRETS - 1}", code="invalid_webhook")
    was = yield from _get(caller, name)
    older = [each for each in was.secrets if each != secret]
    return (yield from _replace(caller, was, WebhookDraft.changed(was, {"secrets": [secret, *older[:keep]]})))


def _replace(caller: Caller, was: Webhook, draft: WebhookDraft) -> Steps[Webhook]:
    if not (yield from caller.store.webhooks.change(draft, caller.actor, caller.tenant).start()):
        raise _missing(draft.name)
    yield from _subscribe(caller, draft)
    if was.disabled_reason is not None:  # new subscriptions must be paused, too
        yield from caller.store.webhooks.disable(draft.name, was.disabled_reason, caller.actor, caller.tenant).start()
    return (yield from _get(caller, draft.name))


def _subscribe(caller: Caller, draft: WebhookDraft) -> Steps[None]:
    store, actor, tenant = caller.store, caller.actor, caller.tenant
    for name, subscription in draft.subscriptions().items():
        if subscription is None:
            yield from store.subscriptions.remove(name, tenant, actor).start()
        else:
            yield from store.subscriptions.set(subscription, new_id(), actor, tenant).start()


@flow()
def _disable(caller: Caller, name: str, reason: str) -> Steps[Webhook]:
    text = storable(reason)
    if text is None or not text.strip():
        raise InvalidInput("disabling a webhook needs a reason", code="reason_required")
    if not (yield from caller.store.webhooks.disable(name, text, caller.actor, caller.tenant).start()):
        raise _missing(name)
    return (yield from _get(caller, name))


@flow()
def _enable(caller: Caller, name: str, skip: bool) -> Steps[Webhook]:
    if not (yield from caller.store.webhooks.enable(name, bool(skip), caller.actor, caller.tenant).start()):
        raise _missing(name)
    return (yield from _get(caller, name))


@flow()
def _remove(caller: Caller, name: str) -> Steps[None]:
    if not (yield from caller.store.webhooks.remove(name, caller.actor, caller.tenant).start()):
        raise _missing(name)


@flow(notifies=True)
def _ping(caller: Caller, name: str) -> Steps[str]:
    webhook = yield from _get(caller, name)
    return (yield from _enqueue(caller, webhook, {"type": PING, "data": {"webhook": name}}))


@flow(writes=False)
def _log(
    caller: Caller, name: str, limit: int, before: str | None, message: str | None, failed: bool
) -> Steps[_Deliveries]:
    webhook = yield from _get(caller, name)
    if not 1 <= limit <= PAGE:
        raise InvalidInput(f"limit must be from 1 to {PAGE}", code="invalid_limit")
    query = caller.store.webhooks.deliveries(webhook.id, webhook.tenant, limit, before, message, failed)
    return (yield from query.start())


@flow(notifies=True)
def _resend(caller: Caller, name: str, message: str) -> Steps[str]:
    """Enqueue a delivery with the payload of the first job, so that the body is the same."""
    webhook = yield from _get(caller, name)
    sent = yield from caller.store.webhooks.deliveries(webhook.id, webhook.tenant, 1, None, message).start()
    job = (yield from caller.store.jobs.get(sent[0].job_id, caller.tenant).start()) if sent else None
    if job is None or not isinstance(job.payload, dict) or "webhook" not in job.payload:
        raise NotFound(
            f"message {message} to {name} no longer exists",
            code="message_not_found",
            fix=f"List its deliveries: holdfast webhooks deliveries {name}",
        )
    payload: dict[str, Any] = {key: value for key, value in job.payload.items() if key != "webhook"}
    if payload.get("event") is None:
        payload.setdefault("at", job.created_at.isoformat(timespec="microseconds").replace("+00:00", "Z"))
    return (yield from _enqueue(caller, webhook, payload | {"message": message}))


def _enqueue(caller: Caller, webhook: Webhook, payload: dict[str, Any]) -> Steps[str]:
    spec = delivery_job(webhook, payload, new_id(), caller.actor)
    (result,) = yield from caller.store.jobs.enqueue([spec], caller.tenant).start()
    if result.id is None:
        raise Refused(result.detail or "the job was refused", code=result.reason)
    return parse_id(result.id)


def _missing(name: str) -> NotFound:
    return NotFound(
        f"no webhook {name} in this tenant", code="webhook_not_found", fix="List them: holdfast webhooks list"
    )
