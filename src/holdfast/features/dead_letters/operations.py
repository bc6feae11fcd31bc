"""``app.dead_letters`` and ``app.operations``."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Annotated, Any, TypedDict, Unpack

from holdfast.engine.declared import Before, Help, Most, http, local_only
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
from holdfast.stores.requests import (
    JobFacts,
    JobFilter,
    JobId,
    MaxAttempts,
    NeededReason,
    Reason,
    Reschedule,
    StartAt,
    StartDelay,
    all_of,
    new_id,
)

_Groups = list[DeadLetterGroup]

REASONS = {
    "not_found": "no such job in this tenant",
    "not_dead": "it is not a dead letter",
    "in_workflow": "other jobs of its workflow depend on it",
}


class GroupOptions(TypedDict, total=False):
    """Which groups, and in what order."""

    kind: Annotated[str, Help("Only dead letters of this kind.", "NAME")]
    queue: Annotated[str, Help("Only dead letters in this queue.", "NAME")]
    text: Annotated[str, Help("Only groups with this text in the error, location or note.")]
    since: Annotated[datetime | Duration, Help("Only groups with a failure since this time, or this long ago.")]
    order: Annotated[
        Order, Help("Sort by last (most recent first) or count (largest first).", "ORDER", option="--sort")
    ]
    resolved: Annotated[bool, Help("Include groups without open dead letters.")]
    limit: Most
    after: Annotated[str, Help("Cursor of the next page, printed by the previous one.", "CURSOR")]


GroupOptions.__defaults__ = {"order": "last", "resolved": False, "limit": 50}  # type: ignore[attr-defined]

Group = Annotated[str, Help("The group's name: its fingerprint.", "GROUP")]
SomeGroup = Annotated[
    str | None,
    Help(
        "The group's name: its fingerprint.",
        "GROUP",
        argument=True,
        cli="The group's name; without it, the options select the jobs.",
    ),
]
Note = Annotated[str | None, Help("The note; null removes it.", longest=2_000)]
Rate = Annotated[float | None, Help("Maximum jobs per second.", "N", low=0.001, high=1_000_000)]
OperationId = Annotated[str, Help("The operation's full id.", "ID", longest=100, parameter="operation_id")]


class DeadLetters(StoreNamespace):
    """Jobs that failed for good, in groups by the reason of their failure."""

    def __init__(self, caller: Caller, prepare: Callable[[str, Any, str], JobSpec]) -> None:
        """``prepare`` makes a job from a kind, a payload and a tenant."""
        super().__init__(caller)
        self._operations = Operations(caller)
        self._prepare = prepare

    @operation
    @http("GET /dead-letters", "read", name="list_dead_letters", page="cursor")
    def groups(self, **wanted: Unpack[GroupOptions]) -> Program[_Groups]:
        """List dead letters, grouped by error, most recent failure first.

        ``after`` is the ``cursor`` of the last group of the previous page.
        """
        options: dict[str, Any] = {**wanted}
        if not isinstance(since := options.get("since"), datetime | None):
            now = yield from run(self._store.clock.now())
            options["since"] = now - timedelta(seconds=seconds(since, "since"))
        return (yield from run(self._store.dead_letters.groups(GroupFilter(tenant=self._tenant, **options))))

    agroups = awaited(groups)

    @operation
    @http("GET /dead-letters/{group}", "read", name="show_dead_letters")
    def group(self, group: Group) -> Program[DeadLetterGroup]:
        """Show a group of dead letters: error, location, count, first and last failure, note."""
        return _known(group, (yield from run(self._store.dead_letters.group(group, self._tenant))))

    agroup = awaited(group)

    @operation
    @http("GET /dead-letters/{group}/jobs", "read", name="list_dead_jobs", page="id", by_hand=True)
    def jobs(self, group: Group, *, limit: Most = 50, before: Before = None) -> Program[list[Job]]:
        """List the open dead letters of a group, newest first. The service returns them without payloads."""
        return (yield from run(self._jobs(group, page_size(limit), before)))

    ajobs = awaited(jobs)

    @operation
    @http("POST /dead-letters/{group}/note", "operate", name="note_dead_letters", example={"note": "see ticket 7"})
    def note(self, group: Group, note: Note) -> Program[DeadLetterGroup]:
        """Set a note on a group. It stays when more dead letters join the group."""
        return (yield from run(self._note(group, note)))

    anote = awaited(note)

    @operation
    @http(
        "POST /dead-letters/{group}/redrive",
        "operate",
        name="redrive_dead_letters",
        example={"reason": "fixed in release 7", "rate": 50},
        status=202,
        location="/operations",
        options=False,
    )
    def redrive(
        self,
        group: SomeGroup = None,
        *,
        rate: Rate = None,
        max_attempts: MaxAttempts = None,
        at: StartAt = None,
        delay: StartDelay = None,
        reason: Reason = None,
        **selection: Unpack[JobFacts],
    ) -> Program[Operation]:
        """Redrive the dead letters of a group back into their queues: a bulk operation, done by the workers.

        Without a group, it selects all dead letters that match. For single jobs: ``app.jobs.redrive(id)``.
        """
        when = Reschedule.of(at, delay, max_attempts)
        return (yield from run(self._resolve("redrive", group, reason, rate, when, selection)))

    aredrive = awaited(redrive)

    @operation
    @http(
        "POST /dead-letters/{group}/discard",
        "operate",
        name="discard_dead_letters",
        example={"reason": "the orders were withdrawn", "rate": 50},
        status=202,
        location="/operations",
        options=False,
    )
    def discard(
        self, group: SomeGroup = None, *, reason: NeededReason, rate: Rate = None, **selection: Unpack[JobFacts]
    ) -> Program[Operation]:
        """Discard the dead letters of a group for good: a bulk operation, done by the workers.

        Without a group, it selects all dead letters that match.
        """
        return (yield from run(self._resolve("discard", group, reason, rate, Reschedule(), selection)))

    adiscard = awaited(discard)

    @operation
    @http(
        "POST /jobs/{job_id}/redrive-as",
        "operate",
        name="redrive_job_as",
        result="redriven_as",
        example={"payload": {"to": "ada@example.com"}, "reason": "the address was wrong"},
    )
    def redrive_as(
        self, job_id: JobId, payload: Annotated[Any, Help("The new payload.")], *, reason: Reason = None
    ) -> Program[str]:
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
    fingerprint: Annotated[str, Help("Only open dead letters of this group.", parameter="group")]


class Operations(StoreNamespace):
    """Bulk operations: cancel, redrive or discard all jobs that match."""

    @operation
    @http("POST /operations", "operate", by_hand=True)
    def start(
        self,
        action: Annotated[BulkAction, Help("Operation to run: cancel, redrive, discard.", "ACTION")],
        *,
        rate: Rate = None,
        max_attempts: MaxAttempts = None,
        at: StartAt = None,
        delay: StartDelay = None,
        reason: Reason = None,
        everything: Annotated[bool, Help("Select all jobs, if nothing else selects some.", option="--all")] = False,
        **selection: Unpack[JobSelection],
    ) -> Program[Operation]:
        """Start an operation on all matching jobs: cancel, redrive or discard. Workers run it in small batches at a
        bounded rate.

        ``app.operations.start("cancel", kind="import", tag="spring")``. This call does not wait for the end.
        """
        started = self._start_flow(action, reason, rate, Reschedule.of(at, delay, max_attempts), selection)
        if not everything and all(value is None for value in selection.values()):
            raise InvalidInput("select jobs, or everything", code="nothing_named")
        return (yield from run(started))

    astart = awaited(start)

    @operation
    @http("GET /operations/{operation_id}", "read", name="show_operation")
    def get(self, id: OperationId) -> Program[Operation]:
        """Show an operation: what it does to which jobs, who started it, and its progress."""
        return (yield from self._get(id))

    aget = awaited(get)

    @operation
    @http("GET /operations", "read", page="id")
    def list(
        self,
        *,
        running: Annotated[bool, Help("Only running operations.")] = False,
        limit: Most = 50,
        before: Before = None,
    ) -> Program[_Operations]:
        """List bulk operations with their progress, newest first."""
        return (yield from run(self._store.operations.list(self._tenant, running, before, page_size(limit))))

    alist = awaited(list)

    @operation
    @http("POST /operations/{operation_id}/cancel", "operate", example={"reason": "requested by the customer"})
    def cancel(self, id: OperationId, *, reason: Reason = None) -> Program[Operation]:
        """Cancel an operation. Jobs it has already changed stay changed."""
        cancelled = yield from run(self._store.operations.cancel(id, storable(reason), self._actor, self._tenant))
        return _ended(cancelled, (yield from self._get(id)))

    acancel = awaited(cancel)

    @operation
    @local_only("the client polls")
    def wait(
        self,
        id: OperationId,
        *,
        timeout: Annotated[Duration | None, Help("Maximum time to wait: 90, 5m, 1h30m.")] = None,
        watch: Callable[[Operation], None] | None = None,
    ) -> Program[Operation]:
        """Wait until the operation is over, or raise ``WaitTimeout``. ``watch`` is called with its progress."""
        until = None if timeout is None else time.monotonic() + seconds(timeout, "timeout")
        while not (operation := (yield from self._get(id))).over:
            if watch is not None:
                watch(operation)
            if until is not None and time.monotonic() >= until:
                raise not_finished(operation)
            yield from sleep(POLL_INTERVAL)
        return operation

    await_end = awaited(wait)

    @operation
    @local_only("it executes the operation in this process")
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
        new = NewOperation(new_id(), checked_action, text, when.max_attempts, check_rate(rate), when.at, when.delay)
        return self._store.operations.start(new, all_of(self._tenant, wanted), self._actor, self._tenant)


def not_finished(operation: Operation) -> WaitTimeout:
    return WaitTimeout(
        f"operation {operation.id} has not finished: {operation.done} of {operation.total} jobs are done"
    )


def _ended(cancelled: bool, operation: Operation) -> Operation:
    if not cancelled:
        raise Conflict(f"operation {operation.id} is already {operation.state}", code="operation_over")
    return operation
