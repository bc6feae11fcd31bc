"""Reads a whole database at one moment for the checker, with plain SQL instead of Holdfast's operations."""

from __future__ import annotations

from collections import defaultdict
from contextlib import closing
from dataclasses import dataclass, field
from itertools import pairwise

from holdfast.engine.states import FINISHED, State
from tests.support.direct_sql import ByHand, open_by_hand

_SECONDS = {"sqlite": "{} / 1e6", "postgres": "extract(epoch from {})::float8"}
_BEGIN = {"sqlite": "begin", "postgres": "begin isolation level repeatable read"}


@dataclass(frozen=True)
class EventRow:
    """A row of the ledger; times are seconds of the database's clock."""

    seq: int
    type: str
    source: State | None
    target: State
    attempt: int
    at: float
    actor: str


@dataclass(frozen=True)
class JobRow:
    """A row of job_state."""

    state: State
    attempt: int
    lease: str | None
    settled_by: str | None
    approval: str | None = None


@dataclass(frozen=True)
class ApprovalRow:
    """An approval and the number of its votes."""

    id: str
    job: str
    state: str
    quorum: int
    ayes: int
    noes: int


@dataclass(frozen=True)
class StepRow:
    """A finished durable step."""

    n: int
    kind: str
    attempt: int
    ended: float


@dataclass(frozen=True)
class LeaseRow:
    """A row of the leases."""

    id: str
    holder: str
    opened: float
    until: float
    ended: float | None
    swept: float | None

    @property
    def end(self) -> float:
        """When the lease ceased to be valid: when it expired, or was ended before."""
        return self.until if self.ended is None else min(self.until, self.ended)


@dataclass(frozen=True)
class Snapshot:
    facts: frozenset[str] = frozenset()
    rows: dict[str, JobRow] = field(default_factory=dict)
    ledgers: dict[str, list[EventRow]] = field(default_factory=dict)
    leases: dict[str, LeaseRow] = field(default_factory=dict)
    progress: tuple[tuple[str, int], ...] = ()
    """(job, attempt) of every checkpoint, artifact and step."""
    steps: dict[str, list[StepRow]] = field(default_factory=dict)
    """The finished steps of each job."""
    approvals: dict[str, list[ApprovalRow]] = field(default_factory=dict)
    """The approvals of each job, oldest first."""
    missed_wakeups: tuple[str, ...] = ()
    """Jobs that still wait for an event that has arrived."""

    def lease_of(self, event: EventRow) -> LeaseRow | None:
        """Return the lease under which the event was written: the last that its actor had opened."""
        own = [lease for lease in self.leases.values() if lease.holder == event.actor and lease.opened <= event.at]
        return max(own, key=lambda lease: lease.opened, default=None)


def take_snapshot(url: str) -> Snapshot:
    with closing(open_by_hand(url)) as by_hand:
        by_hand.execute(_BEGIN[by_hand.name])
        try:
            return _read(by_hand)
        finally:
            by_hand.execute("rollback")


def _read(by_hand: ByHand) -> Snapshot:
    def seconds(column: str) -> str:
        return _SECONDS[by_hand.name].format(column)

    facts = frozenset(str(row[0]) for row in by_hand.execute("select id from job"))
    rows = {
        str(job): JobRow(State(state), *rest)
        for job, state, *rest in by_hand.execute(
            "select id, state, attempt, lease, settled_by, approval_id from job_state"
        )
    }
    ledgers: dict[str, list[EventRow]] = defaultdict(list)
    for job, seq, event_type, source, target, attempt, at, actor in by_hand.execute(
        f"select job_id, seq, type, from_state, to_state, attempt, {seconds('at')}, actor from event order by seq"
    ):
        before = None if source is None else State(source)
        ledgers[str(job)].append(EventRow(seq, event_type, before, State(target), attempt, at, actor))
    leases = {
        str(lease): LeaseRow(str(lease), *rest)
        for lease, *rest in by_hand.execute(
            f"select id, holder, {seconds('opened_at')}, {seconds('until')}, {seconds('ended_at')},"
            f" {seconds('swept_at')} from lease"
        )
    }
    progress = by_hand.execute(
        "select job_id, attempt from checkpoint union all select job_id, attempt from artifact"
        " union all select job_id, attempt from step"
    )
    steps: dict[str, list[StepRow]] = defaultdict(list)
    for job, *rest in by_hand.execute(
        f"select job_id, n, kind, attempt, {seconds('ended_at')} from step where ended_at is not null"
    ):
        steps[str(job)].append(StepRow(*rest))
    approvals: dict[str, list[ApprovalRow]] = defaultdict(list)
    for approval, job, *rest in by_hand.execute(
        "select g.id, g.job_id, g.state, g.quorum, count(case v.verdict when 'approve' then 1 end),"
        " count(case v.verdict when 'deny' then 1 end) from approval g left join vote v on v.approval_id = g.id"
        " group by g.id, g.job_id, g.state, g.quorum, g.opened_at order by g.opened_at, g.id"
    ):
        approvals[str(job)].append(ApprovalRow(str(approval), str(job), *rest))
    missed = by_hand.execute(
        "select s.id from job_state s join step t on t.job_id = s.id"
        " where s.state = 'retry_waiting' and t.kind = 'event' and t.ended_at is not null and t.wake_at = s.due_at"
    )
    return Snapshot(
        facts,
        rows,
        dict(ledgers),
        leases,
        tuple((str(job), attempt) for job, attempt in progress),
        dict(steps),
        dict(approvals),
        tuple(str(row[0]) for row in missed),
    )


def lives(ledger: list[EventRow]) -> list[list[EventRow]]:
    """Split a ledger at each redrive, which gives the job another life."""
    result: list[list[EventRow]] = [[]]
    for event in ledger:
        if event.type == "redrive":
            result.append([])
        result[-1].append(event)
    return result


def endings(life: list[EventRow]) -> list[EventRow]:
    """Return the events that end a life. A failure with a retry or a dead letter right after it is none, and neither
    is a change to a dead job."""
    return [
        event
        for event, following in pairwise([*life, None])
        if event is not None
        and event.target in FINISHED
        and event.type not in ("discard", "clean")
        and not (event.target is State.FAILED and following is not None and following.type in ("retry", "dead_letter"))
    ]
