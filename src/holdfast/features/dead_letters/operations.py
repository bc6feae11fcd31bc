"""``app.dead_letters``, ``app.operations``; the maintenance task of bulk operations."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from datetime import datetime
from typing import Any, Protocol, TypedDict, Unpack

from holdfast.engine.job import Enqueued, Job, JobSpec
from holdfast.engine.names import page_size
from holdfast.engine.payload import safe_text
from holdfast.engine.retry import retry_limit
from holdfast.engine.settlement import storable
from holdfast.engine.states import State
from holdfast.engine.units import Duration, seconds
from holdfast.errors import Conflict, InvalidInput, InvalidSetting, NotFound, WaitTimeout
from holdfast.features.dead_letters.model import (
    NOTE_LIMIT,
    BulkVerb,
    DeadLetterGroup,
    GroupFilter,
    Operation,
    Order,
    Starting,
    check_rate,
    check_verb,
)
from holdfast.stores.flow import Flow, Steps, flow
from holdfast.stores.port import Caller
from holdfast.stores.requests import JobFilter, all_of

_Groups = list[DeadLetterGroup]

REASONS = {
    "not_found": "there is no such job in this tenant",
    "not_dead": "it is not a dead letter",
    "in_workflow": "others of its workflow wait for that very job",
}


class GroupWanted(TypedDict, total=False):
    """Which groups, and in what order."""

    kind: str
    queue: str
    text: str
    since: datetime
    order: Order
    resolved: bool
    limit: int
    after: str


class Chosen(TypedDict, total=False):
    """Which dead letters: those for which all of it holds."""

    kind: str
    queue: str
    agent: str
    tag: str
    correlation_id: str
    parent_id: str
    since: datetime
    until: datetime


class Start(Protocol):
    def __call__(
        self, verb: str, reason: str | None, rate: float | None, max_attempts: int | None, wanted: Any
    ) -> Flow[Operation]: ...


class DeadLetters:
    """Each call has two colours: the one that begins with ``a`` is awaited. ``start`` begins a bulk operation,
    ``prepare`` makes a job of what somebody gave as the payload for a kind and a tenant."""

    def __init__(self, caller: Caller, start: Start, prepare: Callable[[str, Any, str], JobSpec]) -> None:
        self._caller = caller
        self._start = start
        self._prepare = prepare

    def groups(self, **wanted: Unpack[GroupWanted]) -> _Groups:
        """A page, those seen last first, or the largest with ``order="count"``; ``after`` is the ``cursor`` of the
        last one of the page before. With ``resolved=True`` also those in which nothing is open."""
        return self._caller.run(self._groups(wanted))

    async def agroups(self, **wanted: Unpack[GroupWanted]) -> _Groups:
        return await self._caller.arun(self._groups(wanted))

    def group(self, fingerprint: str) -> DeadLetterGroup | None:
        return self._caller.run(self._caller.store.dead_letters.group(fingerprint, self._caller.tenant))

    async def agroup(self, fingerprint: str) -> DeadLetterGroup | None:
        return await self._caller.arun(self._caller.store.dead_letters.group(fingerprint, self._caller.tenant))

    def jobs(self, fingerprint: str, *, limit: int = 50, before: str | None = None) -> list[Job]:
        """The open dead letters of a group, newest first."""
        return self._caller.run(self._jobs(fingerprint, page_size(limit), before))

    async def ajobs(self, fingerprint: str, *, limit: int = 50, before: str | None = None) -> list[Job]:
        return await self._caller.arun(self._jobs(fingerprint, page_size(limit), before))

    def note(self, fingerprint: str, note: str | None) -> DeadLetterGroup:
        """Write down what is known about a group; None takes it away. It stays while more of them come."""
        return self._caller.run(self._note(fingerprint, note))

    async def anote(self, fingerprint: str, note: str | None) -> DeadLetterGroup:
        return await self._caller.arun(self._note(fingerprint, note))

    def redrive(
        self,
        group: str | None = None,
        *,
        reason: str | None = None,
        rate: float | None = None,
        max_attempts: int | None = None,
        **chosen: Unpack[Chosen],
    ) -> Operation:
        """Put the dead letters of a group, or all that match, back into their queues: a bulk operation, at most
        ``rate`` jobs a second. (One by its id: ``app.redrive(id)``.)"""
        return self._caller.run(self._resolving("redrive", group, reason, rate, max_attempts, chosen))

    async def aredrive(
        self,
        group: str | None = None,
        *,
        reason: str | None = None,
        rate: float | None = None,
        max_attempts: int | None = None,
        **chosen: Unpack[Chosen],
    ) -> Operation:
        return await self._caller.arun(self._resolving("redrive", group, reason, rate, max_attempts, chosen))

    def discard(
        self, group: str | None = None, *, reason: str, rate: float | None = None, **chosen: Unpack[Chosen]
    ) -> Operation:
        """Give the dead letters of a group, or all that match, up for good."""
        return self._caller.run(self._resolving("discard", group, reason, rate, None, chosen))

    async def adiscard(
        self, group: str | None = None, *, reason: str, rate: float | None = None, **chosen: Unpack[Chosen]
    ) -> Operation:
        return await self._caller.arun(self._resolving("discard", group, reason, rate, None, chosen))

    def redrive_as(self, job_id: str, payload: Any, *, reason: str | None = None) -> str:
        """Redrive one with another payload: a new job, whose id is answered; the old one is discarded, and the two name
        each other. Asked again it answers the same job."""
        job = _there(job_id, self._caller.run(self._caller.store.jobs.get(job_id, self._caller.tenant)))
        return _made(job_id, self._caller.run(self._remaking(job, payload, reason)))

    async def aredrive_as(self, job_id: str, payload: Any, *, reason: str | None = None) -> str:
        job = _there(job_id, await self._caller.arun(self._caller.store.jobs.get(job_id, self._caller.tenant)))
        return _made(job_id, await self._caller.arun(self._remaking(job, payload, reason)))

    def _groups(self, wanted: GroupWanted) -> Flow[_Groups]:
        return self._caller.store.dead_letters.groups(GroupFilter(tenant=self._caller.tenant, **wanted))

    @flow(writes=False)
    def _jobs(self, fingerprint: str, limit: int, before: str | None) -> Steps[list[Job]]:
        wanted = JobFilter(tenant=self._caller.tenant, fingerprint=fingerprint, limit=limit, before=before)
        found = yield from self._caller.store.jobs.list(wanted).start()
        if not found:
            group = yield from self._caller.store.dead_letters.group(fingerprint, self._caller.tenant).start()
            _known(fingerprint, group)
        return found

    @flow()
    def _note(self, fingerprint: str, note: str | None) -> Steps[DeadLetterGroup]:
        if note is not None and not isinstance(note, str):
            raise InvalidInput(f"a note is text, not {type(note).__name__}", code="invalid_note")
        caller, text = self._caller, None if note is None else safe_text(note, NOTE_LIMIT + 1)
        if text is not None and (not text.strip() or len(text) > NOTE_LIMIT):
            raise InvalidInput(f"a note is text of at most {NOTE_LIMIT:,} characters", code="invalid_note")
        group = yield from caller.store.dead_letters.group(fingerprint, caller.tenant).start()
        # Somebody who looks at every tenant writes it where it was found.
        whose = _known(fingerprint, group).tenant
        yield from caller.store.dead_letters.note(fingerprint, text, caller.actor, whose).start()
        group = yield from caller.store.dead_letters.group(fingerprint, whose).start()
        return _known(fingerprint, group)

    @flow()
    def _resolving(
        self,
        verb: str,
        group: str | None,
        reason: str | None,
        rate: float | None,
        max_attempts: int | None,
        chosen: Chosen,
    ) -> Steps[Operation]:
        wanted: dict[str, Any] = dict(chosen)
        if group is not None:
            found = yield from self._caller.store.dead_letters.group(group, self._caller.tenant).start()
            wanted["fingerprint"] = _known(group, found).fingerprint
        return (yield from self._start(verb, reason, rate, max_attempts, wanted).start())

    def _remaking(self, job: Job, payload: Any, reason: str | None) -> Flow[Enqueued]:
        caller, new = self._caller, self._prepare(job.kind, payload, job.tenant)
        return caller.store.dead_letters.redrive_as(
            job.id, new.id, new.payload, storable(reason), caller.actor, job.tenant
        )


def _known(fingerprint: str, group: DeadLetterGroup | None) -> DeadLetterGroup:
    if group is None:
        raise NotFound(
            f"there is no group of dead letters {fingerprint} in this tenant",
            code="group_not_found",
            fix="See: holdfast dead-letters list --resolved",
        )
    return group


def _there(job_id: str, job: Job | None) -> Job:
    if job is None:
        raise NotFound(f"there is no job {job_id} in this tenant")
    return job


def _made(job_id: str, answer: Enqueued) -> str:
    if answer.id is None:
        why = answer.reason or "refused"
        raise Conflict(f"job {job_id} cannot be redriven with another payload: {REASONS.get(why, why)}", code=why)
    return answer.id


LOOK = 0.2
"""How often somebody who waits looks."""

_Operations = list[Operation]  # inside the class the word is a method


class Wanted(TypedDict, total=False):
    """Which jobs: those for which all of it holds."""

    state: State | str
    kind: str
    queue: str
    agent: str
    tag: str
    correlation_id: str
    parent_id: str
    fingerprint: str
    since: datetime
    until: datetime


class Operations:
    """Each call has two colours: the one that begins with ``a`` is awaited."""

    def __init__(self, caller: Caller, new_id: Callable[[], str]) -> None:
        self._caller = caller
        self._new_id = new_id

    def start(
        self,
        verb: BulkVerb,
        *,
        reason: str | None = None,
        rate: float | None = None,
        max_attempts: int | None = None,
        **wanted: Unpack[Wanted],
    ) -> Operation:
        """``app.operations.start("cancel", kind="import", tag="spring")``: cancel, redrive or discard all jobs that
        match, without waiting for it. Workers do it, in small batches, at most ``rate`` jobs a second together."""
        return self._caller.run(self.starting(verb, reason, rate, max_attempts, wanted))

    async def astart(
        self,
        verb: BulkVerb,
        *,
        reason: str | None = None,
        rate: float | None = None,
        max_attempts: int | None = None,
        **wanted: Unpack[Wanted],
    ) -> Operation:
        return await self._caller.arun(self.starting(verb, reason, rate, max_attempts, wanted))

    def get(self, id: str) -> Operation | None:
        return self._caller.run(self._caller.store.operations.get(id, self._caller.tenant))

    async def aget(self, id: str) -> Operation | None:
        return await self._caller.arun(self._caller.store.operations.get(id, self._caller.tenant))

    def list(self, *, running: bool = False, limit: int = 50, before: str | None = None) -> _Operations:
        """Newest first; ``before`` is the id of the last one of the page before."""
        return self._caller.run(self._caller.store.operations.list(self._caller.tenant, running, before, limit))

    async def alist(self, *, running: bool = False, limit: int = 50, before: str | None = None) -> _Operations:
        return await self._caller.arun(self._caller.store.operations.list(self._caller.tenant, running, before, limit))

    def cancel(self, id: str, *, reason: str | None = None) -> Operation:
        """No further job is touched; what was done stays done."""
        cancelled = self._caller.run(self._cancel(id, reason))
        return _ended(cancelled, _found(id, self.get(id)))

    async def acancel(self, id: str, *, reason: str | None = None) -> Operation:
        cancelled = await self._caller.arun(self._cancel(id, reason))
        return _ended(cancelled, _found(id, await self.aget(id)))

    def wait(
        self, id: str, *, timeout: Duration | None = None, watch: Callable[[Operation], None] | None = None
    ) -> Operation:
        """Until it is over; ``watch`` is told how far it is, each time somebody has looked."""
        until = None if timeout is None else time.monotonic() + seconds(timeout, "timeout")
        while not (operation := _found(id, self.get(id))).over:
            if watch is not None:
                watch(operation)
            if until is not None and time.monotonic() >= until:
                raise WaitTimeout(f"operation {id} is not over: {operation.done} of {operation.total} are done")
            time.sleep(LOOK)
        return operation

    def run(self, id: str, *, watch: Callable[[Operation], None] | None = None) -> Operation:
        """Work on it here until it is over, beside whoever else does; nobody does a batch twice, and the rate holds."""
        while not (operation := _found(id, self.get(id))).over:
            if watch is not None:
                watch(operation)
            if self._caller.run(self._work(id)) is None:
                time.sleep(LOOK / 4)
        return operation

    async def arun(self, id: str) -> Operation:
        while not (operation := _found(id, await self.aget(id))).over:
            if await self._caller.arun(self._work(id)) is None:
                await asyncio.sleep(LOOK / 4)
        return operation

    def starting(
        self, verb: str, reason: str | None, rate: float | None, max_attempts: int | None, wanted: Wanted
    ) -> Flow[Operation]:
        """The flow that starts one, for those who start it as part of something else."""
        which, why = check_verb(verb), storable(reason)
        if which == "discard" and not (why or "").strip():
            raise InvalidInput("dead letters are not discarded without a reason", code="reason_required")
        if max_attempts is not None and which != "redrive":
            raise InvalidSetting("only a redrive gives jobs another number of tries", code="conflicting_options")
        new = Starting(self._new_id(), which, why, retry_limit(max_attempts), check_rate(rate))
        caller = self._caller
        return caller.store.operations.start(new, all_of(caller.tenant, wanted), caller.actor, caller.tenant)

    def _work(self, id: str) -> Flow[int | None]:
        return self._caller.store.operations.work(self._caller.tenant, id)

    def _cancel(self, id: str, reason: str | None) -> Flow[bool]:
        return self._caller.store.operations.cancel(id, storable(reason), self._caller.actor, self._caller.tenant)


def _found(id: str, operation: Operation | None) -> Operation:
    if operation is None:
        raise NotFound(f"there is no operation {id} in this tenant", code="operation_not_found")
    return operation


def _ended(cancelled: bool, operation: Operation) -> Operation:
    if not cancelled:
        raise Conflict(f"operation {operation.id} is {operation.state} already", code="operation_over")
    return operation
