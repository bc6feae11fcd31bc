"""Endpoints as ``app.endpoints`` (JF-9, SC-15): who is told of events by webhooks, and what became of the messages.

An endpoint and its subscriptions are written in one transaction. Each call has two colours: the one that begins with
``a`` is awaited.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, TypedDict, Unpack

from holdfast.engine.ids import parse_id
from holdfast.engine.settlement import storable
from holdfast.errors import Conflict, InvalidInput, NotFound, Refused
from holdfast.features.events.model import JobOptions
from holdfast.features.webhooks.model import (
    PING,
    Endpoint,
    EndpointDelivery,
    EndpointDraft,
    check_endpoint_name,
    check_tenant,
    delivery_job,
)
from holdfast.features.webhooks.signing import MOST_SECRETS
from holdfast.stores.flow import Flow, Steps, flow
from holdfast.stores.ids import new_id
from holdfast.stores.port import Caller

_Endpoints = list[Endpoint]  # inside the class the word is a method
_Deliveries = list[EndpointDelivery]
PAGE: Final = 201
"""How many attempts are listed at most: a page, and whether there are more."""


class Changes(TypedDict, total=False):
    """What can be changed of an endpoint: what is given takes the place of what was."""

    url: str
    secrets: str | Sequence[str]
    wants: str | Sequence[str]
    kind: str | None
    options: JobOptions


class Looking(TypedDict, total=False):
    """Which deliveries: before the one of this id, of one message, those that failed; at most so many."""

    before: str
    message: str
    failed: bool
    limit: int


class Endpoints:
    def __init__(self, caller: Caller) -> None:
        self._caller = caller

    def add(
        self,
        name: str,
        url: str,
        *,
        secrets: str | Sequence[str],
        wants: str | Sequence[str] | None = None,
        kind: str | None = None,
        **options: Unpack[JobOptions],
    ) -> Endpoint:
        """Tell ``url`` of the events it ``wants``, from now on: ``app.endpoints.add("ops", "https://…",
        secrets="OPS_HOOK", wants=["job.dead_letter", "job.crashed"])``.

        ``secrets`` are names, the newest first: ``HOLDFAST_SECRET_OPS_HOOK`` in the environment of the workers, or what
        the secret provider knows; a message is signed with each. ``wants`` are events of jobs and of the application,
        ``*`` is anything; without any it is what somebody should look at. ``kind`` is that of the jobs, ``of_queue``
        their queue. The other options are those of its deliveries.
        """
        return self._caller.run(self._add(name, url, secrets, wants, kind, options))

    async def aadd(
        self,
        name: str,
        url: str,
        *,
        secrets: str | Sequence[str],
        wants: str | Sequence[str] | None = None,
        kind: str | None = None,
        **options: Unpack[JobOptions],
    ) -> Endpoint:
        return await self._caller.arun(self._add(name, url, secrets, wants, kind, options))

    def change(self, name: str, **changes: Unpack[Changes]) -> Endpoint:
        """Give it another URL, other secrets, other wishes, or ``options={"queue": "hooks", "retry": …}``: those that
        are named, and None for the usual. What it was to be told already, it is."""
        return self._caller.run(_changed(self._caller, self._own(name), changes))

    async def achange(self, name: str, **changes: Unpack[Changes]) -> Endpoint:
        return await self._caller.arun(_changed(self._caller, self._own(name), changes))

    def rotate(self, name: str, secret: str, *, keep: int = 1) -> Endpoint:
        """Sign with another secret as well, the newest first, and with ``keep`` of those before it: receivers that
        know only the old one still take the messages. With ``keep=0`` with the new one alone."""
        return self._caller.run(_rotated(self._caller, self._own(name), secret, keep))

    async def arotate(self, name: str, secret: str, *, keep: int = 1) -> Endpoint:
        return await self._caller.arun(_rotated(self._caller, self._own(name), secret, keep))

    def list(self) -> _Endpoints:
        """By their names."""
        return self._caller.run(self._caller.store.webhooks.list(self._caller.tenant))

    async def alist(self) -> _Endpoints:
        return await self._caller.arun(self._caller.store.webhooks.list(self._caller.tenant))

    def show(self, name: str) -> Endpoint:
        return self._caller.run(_there(self._caller, check_endpoint_name(name)))

    async def ashow(self, name: str) -> Endpoint:
        return await self._caller.arun(_there(self._caller, check_endpoint_name(name)))

    async def aget(self, name: str) -> Endpoint | None:
        """None when there is none, or none could be of that name."""
        return await self._caller.arun(self._caller.store.webhooks.get(name, self._caller.tenant))

    def disable(self, name: str, *, reason: str) -> Endpoint:
        """Tell it nothing more; what happens meanwhile is kept for when it is enabled."""
        return self._caller.run(_disabled(self._caller, self._own(name), reason))

    async def adisable(self, name: str, *, reason: str) -> Endpoint:
        return await self._caller.arun(_disabled(self._caller, self._own(name), reason))

    def enable(self, name: str, *, skip: bool = False) -> Endpoint:
        """Go on with what happened meanwhile; with ``skip`` without it."""
        return self._caller.run(_enabled(self._caller, self._own(name), skip))

    async def aenable(self, name: str, *, skip: bool = False) -> Endpoint:
        return await self._caller.arun(_enabled(self._caller, self._own(name), skip))

    def remove(self, name: str) -> None:
        """It and the log of its deliveries. What was on its way to it is cancelled when its turn comes."""
        self._caller.run(_removed(self._caller, self._own(name)))

    async def aremove(self, name: str) -> None:
        await self._caller.arun(_removed(self._caller, self._own(name)))

    def test(self, name: str) -> str:
        """Send it a ``ping``, also while it is disabled; the id of the job that does."""
        return self._caller.run(_pinged(self._caller, self._own(name)))

    async def atest(self, name: str) -> str:
        return await self._caller.arun(_pinged(self._caller, self._own(name)))

    def deliveries(self, name: str, **wanted: Unpack[Looking]) -> _Deliveries:
        """Attempts to deliver messages to it, the newest first."""
        return self._caller.run(_log(self._caller, check_endpoint_name(name), wanted))

    async def adeliveries(self, name: str, **wanted: Unpack[Looking]) -> _Deliveries:
        return await self._caller.arun(_log(self._caller, check_endpoint_name(name), wanted))

    def resend(self, name: str, message: str) -> str:
        """Send a message once more, the same under the same id; the id of the job that does."""
        return self._caller.run(_resent(self._caller, self._own(name), message))

    async def aresend(self, name: str, message: str) -> str:
        return await self._caller.arun(_resent(self._caller, self._own(name), message))

    def _own(self, name: str) -> str:
        check_tenant(self._caller.tenant)
        return check_endpoint_name(name)

    def _add(
        self,
        name: str,
        url: str,
        secrets: str | Sequence[str],
        wants: str | Sequence[str] | None,
        kind: str | None,
        options: JobOptions,
    ) -> Flow[Endpoint]:
        check_tenant(self._caller.tenant)
        return _added(self._caller, EndpointDraft.of(name, url, secrets, wants, kind, options))


@flow(writes=False)
def _there(caller: Caller, name: str) -> Steps[Endpoint]:
    return (yield from _found(caller, name))


def _found(caller: Caller, name: str) -> Steps[Endpoint]:
    found = yield from caller.store.webhooks.get(name, caller.tenant).start()
    if found is None:
        raise _missing(name)
    return found


@flow()
def _added(caller: Caller, draft: EndpointDraft) -> Steps[Endpoint]:
    if not (yield from caller.store.webhooks.add(draft, new_id(), caller.actor, caller.tenant).start()):
        raise Conflict(f"there is an endpoint {draft.name} already", code="endpoint_exists")
    yield from _subscribe(caller, draft)
    return (yield from _found(caller, draft.name))


@flow()
def _changed(caller: Caller, name: str, changes: Changes) -> Steps[Endpoint]:
    was = yield from _found(caller, name)
    return (yield from _put(caller, was, EndpointDraft.changed(was, changes)))


@flow()
def _rotated(caller: Caller, name: str, secret: str, keep: int) -> Steps[Endpoint]:
    if not 0 <= keep < MOST_SECRETS:
        raise InvalidInput(f"keep is from 0 to {MOST_SECRETS - 1}", code="invalid_endpoint")
    was = yield from _found(caller, name)
    older = [each for each in was.secrets if each != secret]
    return (yield from _put(caller, was, EndpointDraft.changed(was, {"secrets": [secret, *older[:keep]]})))


def _put(caller: Caller, was: Endpoint, draft: EndpointDraft) -> Steps[Endpoint]:
    if not (yield from caller.store.webhooks.change(draft, caller.actor, caller.tenant).start()):
        raise _missing(draft.name)
    yield from _subscribe(caller, draft)
    if was.disabled_reason is not None:  # a subscription that is new rests as well
        yield from caller.store.webhooks.disable(draft.name, was.disabled_reason, caller.actor, caller.tenant).start()
    return (yield from _found(caller, draft.name))


def _subscribe(caller: Caller, draft: EndpointDraft) -> Steps[None]:
    store, actor, tenant = caller.store, caller.actor, caller.tenant
    for name, wanted in draft.subscriptions().items():
        if wanted is None:
            yield from store.subscriptions.remove(name, tenant, actor).start()
        else:
            yield from store.subscriptions.set(wanted, new_id(), actor, tenant).start()


@flow()
def _disabled(caller: Caller, name: str, reason: str) -> Steps[Endpoint]:
    why = storable(reason)
    if why is None or not why.strip():
        raise InvalidInput("no endpoint is disabled without a reason", code="reason_required")
    if not (yield from caller.store.webhooks.disable(name, why, caller.actor, caller.tenant).start()):
        raise _missing(name)
    return (yield from _found(caller, name))


@flow()
def _enabled(caller: Caller, name: str, skip: bool) -> Steps[Endpoint]:
    if not (yield from caller.store.webhooks.enable(name, skip, caller.actor, caller.tenant).start()):
        raise _missing(name)
    return (yield from _found(caller, name))


@flow()
def _removed(caller: Caller, name: str) -> Steps[None]:
    if not (yield from caller.store.webhooks.remove(name, caller.actor, caller.tenant).start()):
        raise _missing(name)


@flow(tells=True)
def _pinged(caller: Caller, name: str) -> Steps[str]:
    found = yield from _found(caller, name)
    return (yield from _enqueued(caller, found, {"type": PING, "data": {"endpoint": name}}))


@flow(writes=False)
def _log(caller: Caller, name: str, wanted: Looking) -> Steps[_Deliveries]:
    found = yield from _found(caller, name)
    limit = wanted.get("limit", 50)
    if not 1 <= limit <= PAGE:
        raise InvalidInput(f"limit is from 1 to {PAGE}", code="invalid_limit")
    before, message, failed = wanted.get("before"), wanted.get("message"), wanted.get("failed", False)
    asked = caller.store.webhooks.deliveries(found.id, found.tenant, limit, before, message, failed)
    return (yield from asked.start())


@flow(tells=True)
def _resent(caller: Caller, name: str, message: str) -> Steps[str]:
    """The body is made again of what the first job was given, so it is the same."""
    found = yield from _found(caller, name)
    sent = yield from caller.store.webhooks.deliveries(found.id, found.tenant, 1, None, message).start()
    job = (yield from caller.store.jobs.get(sent[0].job_id, caller.tenant).start()) if sent else None
    if job is None or not isinstance(job.payload, dict) or "endpoint" not in job.payload:
        raise NotFound(
            f"there is no message {message} to {name} any more",
            code="message_not_found",
            fix=f"See: holdfast endpoints deliveries {name}",
        )
    payload: dict[str, Any] = {key: value for key, value in job.payload.items() if key != "endpoint"}
    if payload.get("event") is None:
        payload.setdefault("at", job.created_at.isoformat(timespec="microseconds").replace("+00:00", "Z"))
    return (yield from _enqueued(caller, found, payload | {"message": message}))


def _enqueued(caller: Caller, endpoint: Endpoint, payload: dict[str, Any]) -> Steps[str]:
    spec = delivery_job(endpoint, payload, new_id(), caller.actor)
    (answer,) = yield from caller.store.jobs.enqueue([spec], caller.tenant).start()
    if answer.id is None:
        raise Refused(answer.detail or "the job was refused", code=answer.reason)
    return parse_id(answer.id)


def _missing(name: str) -> NotFound:
    return NotFound(
        f"there is no endpoint {name} in this tenant", code="endpoint_not_found", fix="See: holdfast endpoints list"
    )
