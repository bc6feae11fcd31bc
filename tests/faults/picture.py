"""The whole of a database at one moment, read with plain SQL and not through our operations, for the checker."""

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
class Step:
    """One row of the ledger; times are seconds of the database's clock."""

    seq: int
    type: str
    source: State | None
    target: State
    attempt: int
    at: float
    actor: str


@dataclass(frozen=True)
class Row:
    """A row of job_state."""

    state: State
    attempt: int
    lease: str | None
    settled_by: str | None
    approval: str | None = None


@dataclass(frozen=True)
class Asked:
    """A row of the approvals, and what people said of it."""

    id: str
    job: str
    state: str
    quorum: int
    ayes: int
    noes: int


@dataclass(frozen=True)
class Done:
    """A durable step that is over."""

    n: int
    kind: str
    attempt: int
    ended: float


@dataclass(frozen=True)
class Holding:
    """A row of the leases."""

    id: str
    holder: str
    opened: float
    until: float
    ended: float | None
    swept: float | None

    @property
    def end(self) -> float:
        """When it was no longer good: when it lapsed, or was ended before."""
        return self.until if self.ended is None else min(self.until, self.ended)


@dataclass(frozen=True)
class Picture:
    facts: frozenset[str] = frozenset()
    rows: dict[str, Row] = field(default_factory=dict)
    ledgers: dict[str, list[Step]] = field(default_factory=dict)
    leases: dict[str, Holding] = field(default_factory=dict)
    progress: tuple[tuple[str, int], ...] = ()
    """(job, attempt) of every checkpoint, artifact and step."""
    steps: dict[str, list[Done]] = field(default_factory=dict)
    """The steps that are over, of each job."""
    approvals: dict[str, list[Asked]] = field(default_factory=dict)
    """Of each job, in the order in which they were asked."""
    asleep: tuple[str, ...] = ()
    """Jobs that wait for an event which has come."""

    def lease_of(self, step: Step) -> Holding | None:
        """The lease under which whoever took this step stood then: the last that its signer had opened."""
        own = [lease for lease in self.leases.values() if lease.holder == step.actor and lease.opened <= step.at]
        return max(own, key=lambda lease: lease.opened, default=None)


def take_picture(url: str) -> Picture:
    with closing(open_by_hand(url)) as by_hand:
        by_hand.execute(_BEGIN[by_hand.name])
        try:
            return _picture(by_hand)
        finally:
            by_hand.execute("rollback")


def _picture(by_hand: ByHand) -> Picture:
    def seconds(column: str) -> str:
        return _SECONDS[by_hand.name].format(column)

    facts = frozenset(str(row[0]) for row in by_hand.execute("select id from job"))
    rows = {
        str(job): Row(State(state), attempt, lease, settled, approval)
        for job, state, attempt, lease, settled, approval in by_hand.execute(
            "select id, state, attempt, lease, settled_by, approval_id from job_state"
        )
    }
    ledgers: dict[str, list[Step]] = defaultdict(list)
    for job, seq, event_type, source, target, attempt, at, actor in by_hand.execute(
        f"select job_id, seq, type, from_state, to_state, attempt, {seconds('at')}, actor from event order by seq"
    ):
        step = Step(seq, event_type, None if source is None else State(source), State(target), attempt, at, actor)
        ledgers[str(job)].append(step)
    leases = {
        str(lease): Holding(str(lease), holder, opened, until, ended, swept)
        for lease, holder, opened, until, ended, swept in by_hand.execute(
            f"select id, holder, {seconds('opened_at')}, {seconds('until')}, {seconds('ended_at')},"
            f" {seconds('swept_at')} from lease"
        )
    }
    progress = by_hand.execute(
        "select job_id, attempt from checkpoint union all select job_id, attempt from artifact"
        " union all select job_id, attempt from step"
    )
    steps: dict[str, list[Done]] = defaultdict(list)
    for job, n, kind, attempt, ended in by_hand.execute(
        f"select job_id, n, kind, attempt, {seconds('ended_at')} from step where ended_at is not null"
    ):
        steps[str(job)].append(Done(n, kind, attempt, ended))
    approvals: dict[str, list[Asked]] = defaultdict(list)
    for approval, job, state, quorum, ayes, noes in by_hand.execute(
        "select g.id, g.job_id, g.state, g.quorum, count(case v.verdict when 'approve' then 1 end),"
        " count(case v.verdict when 'deny' then 1 end) from approval g left join vote v on v.approval_id = g.id"
        " group by g.id, g.job_id, g.state, g.quorum, g.opened_at order by g.opened_at, g.id"
    ):
        approvals[str(job)].append(Asked(str(approval), str(job), state, quorum, ayes, noes))
    asleep = by_hand.execute(
        "select s.id from job_state s join step t on t.job_id = s.id"
        " where s.state = 'retry_waiting' and t.kind = 'event' and t.ended_at is not null and t.wake_at = s.due_at"
    )
    return Picture(
        facts,
        rows,
        dict(ledgers),
        leases,
        tuple((str(job), attempt) for job, attempt in progress),
        dict(steps),
        dict(approvals),
        tuple(str(row[0]) for row in asleep),
    )


def lives(ledger: list[Step]) -> list[list[Step]]:
    """A ledger cut where an operator gave the job another life."""
    cut: list[list[Step]] = [[]]
    for step in ledger:
        if step.type == "redrive":
            cut.append([])
        cut[-1].append(step)
    return cut


def endings(life: list[Step]) -> list[Step]:
    """The steps that end a life. `failed` that passes on at once is none, and neither is what is done to the dead."""
    ends = [
        step
        for step, following in pairwise([*life, None])
        if step is not None
        and step.target in FINISHED
        and step.type not in ("discard", "clean")
        and not (step.target is State.FAILED and following is not None and following.type in ("retry", "bury"))
    ]
    return ends
