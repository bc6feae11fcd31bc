"""``app.dead_letters`` and ``app.operations``."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, TypedDict, Unpack

from holdfast.engine.job import Job, JobSpec
from holdfast.engine.names import page_size
from holdfast.engine.operation import Program, awaited, operation
from holdfast.engine.payload import safe_text
from holdfast.engine.settlement import storable
from holdfast.engine.states import State
from holdfast.engine.units import Duration, seconds
from holdfast.errors import Conflict, InvalidInput, InvalidSetting, NotFound, WaitTimeout
from holdfast.features.dead_letters.model import (
    NOTE_LIMIT,
    BulkAction,
    DeadLetterGroup,
    GroupFilter,
    NewOperation,
    Operation,
    Order,
    check_action,
    check_rate,
)
from holdfast.stores.flow import Flow, Steps, flow, run
from holdfast.stores.namespace import StoreNamespace, sleep
from holdfast.stores.port import Caller
from holdfast.stores.requests import JobFacts, JobFilter, Reschedule, all_of

_Groups = list[DeadLetterGroup]

REASONS = {
    "not_found": "no such job in this tenant",
    "not_dead": "it is not a dead letter",
    "in_workflow": "other jobs of its workflow depend on it",
}


class GroupOptions(TypedDict, total=False):
    """Which groups, and in what order."""

    kind: str
    queue: str
    text: str
    since: datetime
    order: Order
    resolved: bool
    limit: int
    after: str


class DeadLetters(StoreNamespace):
    """Jobs that failed for good, in groups by the reason of their failure."""

    def __init__(self, caller: Caller, operations: Operations, prepare: Callable[[str, Any, str], JobSpec]) -> None:
        """``prepare`` makes a job from a kind, a payload and a tenant."""
        super().__init__(caller)
        self._operations = operations
        self._prepare = prepare

    @operation
    def groups(self, **wanted: Unpack[GroupOptions]) -> Program[_Groups]:
        """A page of groups, most recent failure first, or largest first with ``order="count"``. ``after`` is the
        ``cursor`` of the last group of the previous page. ``resolved=True`` includes groups without open dead
        letters."""
        return (yield from run(self._store.dead_letters.groups(GroupFilter(tenant=self._tenant, **wanted))))

    agroups = awaited(groups)

    @operation
    def group(self, fingerprint: str) -> Program[DeadLetterGroup]:
        """One group, or ``NotFound``."""
        return _known(fingerprint, (yield from run(self._store.dead_letters.group(fingerprint, self._tenant))))

    agroup = awaited(group)

    @operation
    def jobs(self, fingerprint: str, *, limit: int = 50, before: str | None = None) -> Program[list[Job]]:
        """The open dead letters of a group, newest first."""
        return (yield from run(self._jobs(fingerprint, page_size(limit), before)))

    ajobs = awaited(jobs)

    @operation
    def note(self, fingerprint: str, note: str | None) -> Program[DeadLetterGroup]:
        """Set the note of a group, or remove it with None. It stays when more jobs fail for the same reason."""
        return (yield from run(self._note(fingerprint, note)))

    anote = awaited(note)

    @operation
    def redrive(
        self,
        group: str | None = None,
        *,
        reason: str | None = None,
        rate: float | None = None,
        max_attempts: int | None = None,
        at: datetime | None = None,
        delay: Duration | None = None,
        **selection: Unpack[JobFacts],
    ) -> Program[Operation]:
        """Put the dead letters of a group, or all that match, back into their queues: a bulk operation, at most
        ``rate`` jobs per second. They may start immediately, or not before ``at`` or after a ``delay``. For single
        jobs: ``app.jobs.redrive(id)``."""
        when = Reschedule.of(at, delay, max_attempts)
        return (yield from run(self._resolve("redrive", group, reason, rate, when, selection)))

    aredrive = awaited(redrive)

    @operation
    def discard(
        self,
        group: str | None = None,
        *,
        reason: str,
        rate: float | None = None,
        **selection: Unpack[JobFacts],
    ) -> Program[Operation]:
        """Discard the dead letters of a group, or all that match, for good."""
        return (yield from run(self._resolve("discard", group, reason, rate, Reschedule(), selection)))

    adiscard = awaited(discard)

    @operation
    def redrive_as(self, job_id: str, payload: Any, *, reason: str | None = None) -> Program[str]:
        """Redrive a dead letter with another payload. This makes a new job and returns its id; the old job is
        discarded, and the two refer to each other. A repeated call returns the same job."""
        job = yield from run(self._store.jobs.get(job_id, self._tenant))
        if job is None:
            raise NotFound(f"no job {job_id} in this tenant")
        new = self._prepare(job.kind, payload, job.tenant)
        result = yield from run(
            self._store.dead_letters.redrive_as(job.id, new.id, new.payload, storable(reason), self._actor, job.tenant)
        )
        if result.id is None:
            code = result.reason or "refused"
            raise Conflict(
                f"job {job_id} cannot be redriven with another payload: {REASONS.get(code, code)}", code=code
            )
        return result.id

    aredrive_as = awaited(redrive_as)

    @flow(writes=False)
    def _jobs(self, fingerprint: str, limit: int, before: str | None) -> Steps[list[Job]]:
        wanted = JobFilter(tenant=self._tenant, fingerprint=fingerprint, limit=limit, before=before)
        jobs = yield from self._store.jobs.list(wanted).start()
        if not jobs:
            group = yield from self._store.dead_letters.group(fingerprint, self._tenant).start()
            _known(fingerprint, group)
        return jobs

    @flow()
    def _note(self, fingerprint: str, note: str | None) -> Steps[DeadLetterGroup]:
        if note is not None and not isinstance(note, str):
            raise InvalidInput(f"a note must be text, not {type(note).__name__}", code="invalid_note")
        text = None if note is None else safe_text(note, NOTE_LIMIT + 1)
        if text is not None and (not text.strip() or len(text) > NOTE_LIMIT):
            raise InvalidInput(f"a note must have at most {NOTE_LIMIT:,} characters", code="invalid_note")
        store = self._store
        group = yield from store.dead_letters.group(fingerprint, self._tenant).start()
        # A caller who reads every tenant writes the note to the tenant of the group.
        tenant = _known(fingerprint, group).tenant
        yield from store.dead_letters.note(fingerprint, text, self._actor, tenant).start()
        group = yield from store.dead_letters.group(fingerprint, tenant).start()
        return _known(fingerprint, group)

    @flow()
    def _resolve(
        self,
        action: str,
        group: str | None,
        reason: str | None,
        rate: float | None,
        when: Reschedule,
        selection: JobFacts,
    ) -> Steps[Operation]:
        wanted: dict[str, Any] = dict(selection)
        if group is not None:
            stored = yield from self._store.dead_letters.group(group, self._tenant).start()
            wanted["fingerprint"] = _known(group, stored).fingerprint
        return (yield from self._operations._start_flow(action, reason, rate, when, wanted).start())


def _known(fingerprint: str, group: DeadLetterGroup | None) -> DeadLetterGroup:
    if group is None:
        raise NotFound(
            f"no dead letter group {fingerprint} in this tenant",
            code="group_not_found",
            fix="List the groups: holdfast dead-letters list --resolved",
        )
    return group


POLL_INTERVAL = 0.2
"""Seconds between two reads of a caller that waits."""

_Operations = list[Operation]  # inside the class, `list` is an operation


class JobSelection(JobFacts, total=False):
    """Which jobs: those that match every given field."""

    state: State | str
    fingerprint: str


class Operations(StoreNamespace):
    """Bulk operations: cancel, redrive or discard all jobs that match."""

    def __init__(self, caller: Caller, new_id: Callable[[], str]) -> None:
        super().__init__(caller)
        self._new_id = new_id

    @operation
    def start(
        self,
        action: BulkAction,
        *,
        reason: str | None = None,
        rate: float | None = None,
        max_attempts: int | None = None,
        at: datetime | None = None,
        delay: Duration | None = None,
        **selection: Unpack[JobSelection],
    ) -> Program[Operation]:
        """Start a bulk operation: ``app.operations.start("cancel", kind="import", tag="spring")``.

        It cancels, redrives or discards all jobs that match. Workers execute it in small batches, together at most
        ``rate`` jobs per second. Redriven jobs start at once, or not before ``at`` or after a ``delay``. This call does
        not wait for the end.
        """
        when = Reschedule.of(at, delay, max_attempts)
        return (yield from run(self._start_flow(action, reason, rate, when, selection)))

    astart = awaited(start)

    @operation
    def get(self, id: str) -> Program[Operation]:
        """The operation, or ``NotFound``."""
        return (yield from self._get(id))

    aget = awaited(get)

    @operation
    def list(self, *, running: bool = False, limit: int = 50, before: str | None = None) -> Program[_Operations]:
        """Operations, newest first; ``before`` is the id of the last operation of the previous page."""
        return (yield from run(self._store.operations.list(self._tenant, running, before, page_size(limit))))

    alist = awaited(list)

    @operation
    def cancel(self, id: str, *, reason: str | None = None) -> Program[Operation]:
        """Stop the operation. Jobs it has changed stay changed."""
        cancelled = yield from run(self._store.operations.cancel(id, storable(reason), self._actor, self._tenant))
        return _ended(cancelled, (yield from self._get(id)))

    acancel = awaited(cancel)

    @operation
    def wait(
        self, id: str, *, timeout: Duration | None = None, watch: Callable[[Operation], None] | None = None
    ) -> Program[Operation]:
        """Wait until the operation is over, or raise ``WaitTimeout``. ``watch`` is called with its progress."""
        until = None if timeout is None else time.monotonic() + seconds(timeout, "timeout")
        while not (operation := (yield from self._get(id))).over:
            if watch is not None:
                watch(operation)
            if until is not None and time.monotonic() >= until:
                raise WaitTimeout(
                    f"operation {id} has not finished: {operation.done} of {operation.total} jobs are done"
                )
            yield from sleep(POLL_INTERVAL)
        return operation

    await_end = awaited(wait)

    @operation
    def run(self, id: str, *, watch: Callable[[Operation], None] | None = None) -> Program[Operation]:
        """Execute the operation in this process until it is over, in parallel with the workers. No batch is executed
        twice, and the rate applies to all of them together."""
        while not (operation := (yield from self._get(id))).over:
            if watch is not None:
                watch(operation)
            if (yield from run(self._store.operations.work(self._tenant, id))) is None:
                yield from sleep(POLL_INTERVAL / 4)
        return operation

    arun = awaited(run)

    def _get(self, id: str) -> Program[Operation]:
        operation = yield from run(self._store.operations.get(id, self._tenant))
        if operation is None:
            raise NotFound(f"no operation {id} in this tenant", code="operation_not_found")
        return operation

    def _start_flow(
        self, action: str, reason: str | None, rate: float | None, when: Reschedule, wanted: Mapping[str, Any]
    ) -> Flow[Operation]:
        """The flow that starts an operation, alone or as part of another flow."""
        checked_action, text = check_action(action), storable(reason)
        if checked_action == "discard" and not (text or "").strip():
            raise InvalidInput("discarding dead letters needs a reason", code="reason_required")
        if when != Reschedule() and checked_action != "redrive":
            raise InvalidSetting("max_attempts and a start time are only for a redrive", code="conflicting_options")
        new = NewOperation(
            self._new_id(), checked_action, text, when.max_attempts, check_rate(rate), when.at, when.delay
        )
        return self._store.operations.start(new, all_of(self._tenant, wanted), self._actor, self._tenant)


def _ended(cancelled: bool, operation: Operation) -> Operation:
    if not cancelled:
        raise Conflict(f"operation {operation.id} is already {operation.state}", code="operation_over")
    return operation
