"""Records of the model, and the one method that changes a job's state. The test advances the clock."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from fractions import Fraction
from typing import Any

from holdfast.engine.job import EVERY_TENANT, Event, JobSpec
from holdfast.engine.states import FINISHED, HELD, TRANSITIONS, EventType, State, Transition
from holdfast.engine.steps import Step
from holdfast.errors import StaleLease
from holdfast.features.agents.model import Agent

# If two transitions have the same source and type, the first is the default; the other needs an explicit target.
TARGETS = {(step.source, step.type.value): step.target for step in reversed(TRANSITIONS)}


@dataclass
class ModelJob:
    spec: JobSpec
    tenant: str
    position: Fraction
    created_at: datetime
    run_at: datetime | None
    due_at: datetime | None
    state: State = State.QUEUED
    attempt: int = 0
    retries: int = 0
    crashes: int = 0
    started_at: datetime | None = None
    finished_at: datetime | None = None
    error: tuple[str | None, str | None] = (None, None)
    lease: str | None = None
    settled_by: str | None = None
    attempts_override: int | None = None
    priority_override: int | None = None
    note: dict[str, Any] | None = None
    result: str | None = None
    checkpoints: dict[str, tuple[datetime, Any]] = field(default_factory=dict)
    artifacts: dict[tuple[int, str], tuple[datetime, str]] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)
    approval: str | None = None
    steps: dict[int, Step] = field(default_factory=dict)
    held: bool = False
    """Held until its parents have ended, or for good."""

    @property
    def id(self) -> str:
        return self.spec.id

    @property
    def max_attempts(self) -> int:
        """The enqueued limit, unless an operator has set another."""
        return self.spec.retry.max_attempts if self.attempts_override is None else self.attempts_override

    @property
    def priority(self) -> int:
        """The enqueued priority, unless the job was moved to another."""
        return self.spec.priority if self.priority_override is None else self.priority_override

    @property
    def waiting(self) -> bool:
        return self.state in (State.QUEUED, State.RETRY_WAITING)

    @property
    def claimable(self) -> bool:
        return self.state is State.QUEUED and self.due_at is None and not self.held


@dataclass
class ModelLease:
    tenant: str
    holder: str
    until: datetime
    ended: bool = False
    swept: bool = False


def seconds(number: float) -> timedelta:
    """Round to the nearest microsecond: neither database stores more."""
    return timedelta(microseconds=round(number * 1_000_000))


def ledger_time(at: datetime) -> str:
    """Format a time as the ledger does."""
    return at.strftime("%Y-%m-%dT%H:%M:%S.") + f"{at.microsecond // 1000:03}Z"


class ModelBase:
    """Jobs in the order of arrival, and leases by the names of the test (every store has different tokens)."""

    def __init__(self, now: datetime) -> None:
        self.now = now
        self.jobs: dict[str, ModelJob] = {}
        self.leases: dict[str, ModelLease] = {}
        self.agents: dict[tuple[str, str], Agent] = {}

    def step(
        self,
        job: ModelJob,
        event_type: str,
        actor: str,
        note: dict[str, Any] | None = None,
        due: datetime | None = None,
        target: State | None = None,
    ) -> None:
        """Take a transition of the table and record it. Raises ``KeyError`` if the table has none."""
        source, job.state = job.state, target or TARGETS[job.state, event_type]
        if Transition(source, EventType(event_type), job.state) not in TRANSITIONS:
            raise KeyError(event_type)
        if source is State.WAITING_FOR_APPROVAL and job.approval is not None:
            self.withdraw_approval(job)
        if event_type in ("take", "start"):
            job.attempt += 1
            job.started_at = self.now
        if job.state not in HELD:
            job.lease = None
        job.due_at = due
        job.finished_at = self.now if job.state in FINISHED else None
        job.note = note
        meta = dict(note or {})
        if job.state in (State.FAILED, State.DEAD_LETTER):
            meta |= {"error_code": job.error[0], "error_message": job.error[1]}
        if due is not None and job.state is State.RETRY_WAITING:
            meta["due_at"] = ledger_time(due)
        self.record(job, event_type, source, actor, meta)

    def record(self, job: ModelJob, event_type: str, source: State | None, actor: str, meta: dict[str, Any]) -> None:
        """Add an event. Its number is zero: it differs between the stores."""
        facts = (job.id, job.tenant, job.spec.kind, event_type, source, job.state, job.attempt)
        job.events.append(Event(0, *facts, self.now, actor, meta))

    def withdraw_approval(self, job: ModelJob) -> None:
        """Overridden where approvals are modelled."""

    def within(self, scope: str) -> list[ModelJob]:
        return [job for job in self.jobs.values() if scope in (EVERY_TENANT, job.tenant)]

    def is_overdue(self, job: ModelJob) -> bool:
        return job.spec.deadline_at is not None and job.spec.deadline_at <= self.now

    def live(self, lease: ModelLease) -> bool:
        return not lease.ended and lease.until > self.now

    def holder(self, name: str, scope: str) -> str:
        """Return the holder of a lease, which exists only in the scope it was opened in."""
        lease = self.leases.get(name)
        if lease is None or lease.tenant != scope:
            raise StaleLease("not known here")
        return lease.holder

    def held_by(self, name: str, state: State) -> list[ModelJob]:
        return [job for job in self.jobs.values() if job.lease == name and job.state is state]

    def claimable_jobs(self, scope: str, queue: str) -> list[ModelJob]:
        """Return the jobs that can be claimed, in queue order (SC-2)."""
        return [job for job in self.queued_jobs(scope, queue) if job.claimable]

    def queued_jobs(self, scope: str, queue: str) -> list[ModelJob]:
        """Return the queued jobs without a due time, in queue order, held ones included."""
        jobs = [job for job in self.within(scope) if job.state is State.QUEUED and job.spec.queue == queue]
        return sorted((job for job in jobs if job.due_at is None), key=lambda job: (-job.priority, job.position))
