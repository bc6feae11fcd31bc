"""The things of the model, and the one way a state changes in it. Time stands still until somebody moves it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from fractions import Fraction
from typing import Any

from holdfast.engine.job import EVERY_TENANT, JobSpec
from holdfast.engine.states import FINISHED, HELD, TRANSITIONS, EventType, State, Transition
from holdfast.engine.steps import Step
from holdfast.errors import StaleLease
from holdfast.features.agents.model import Agent

# Of two steps of one name the first is the usual one; the other has to be asked for.
TARGETS = {(step.source, step.type.value): step.target for step in reversed(TRANSITIONS)}


@dataclass
class ModelEvent:
    type: str
    source: State | None
    target: State
    attempt: int
    at: datetime
    actor: str
    meta: dict[str, Any]


@dataclass
class ModelJob:
    spec: JobSpec
    tenant: str
    place: Fraction
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
    limit: int | None = None
    level: int | None = None
    note: dict[str, Any] | None = None
    result: str | None = None
    checkpoints: dict[str, tuple[datetime, Any]] = field(default_factory=dict)
    artifacts: dict[tuple[int, str], tuple[datetime, str]] = field(default_factory=dict)
    events: list[ModelEvent] = field(default_factory=list)
    approval: str | None = None
    steps: dict[int, Step] = field(default_factory=dict)
    held: bool = False
    """Until its parents have ended, or for good."""

    @property
    def id(self) -> str:
        return self.spec.id

    @property
    def max_attempts(self) -> int:
        """As it was enqueued, unless somebody has set another."""
        return self.spec.retry.max_attempts if self.limit is None else self.limit

    @property
    def priority(self) -> int:
        """As it was enqueued, unless it was moved to another."""
        return self.spec.priority if self.level is None else self.level

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
    """To the nearest microsecond: neither database keeps more."""
    return timedelta(microseconds=round(number * 1_000_000))


def moment(at: datetime) -> str:
    """As the ledger writes it."""
    return at.strftime("%Y-%m-%dT%H:%M:%S.") + f"{at.microsecond // 1000:03}Z"


class World:
    """Jobs in the order they came, leases by the names the test gave them (every store has tokens of its own)."""

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
        """Take a step of the table (a ``KeyError`` if it has none) and write it down."""
        source, job.state = job.state, target or TARGETS[job.state, event_type]
        if Transition(source, EventType(event_type), job.state) not in TRANSITIONS:
            raise KeyError(event_type)
        if source is State.WAITING_FOR_APPROVAL and job.approval is not None:
            self.leave_approval(job)
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
            meta["due_at"] = moment(due)
        job.events.append(ModelEvent(event_type, source, job.state, job.attempt, self.now, actor, meta))

    def leave_approval(self, job: ModelJob) -> None:
        """For whoever knows of approvals."""

    def within(self, scope: str) -> list[ModelJob]:
        return [job for job in self.jobs.values() if scope in (EVERY_TENANT, job.tenant)]

    def known(self, ids: Sequence[str]) -> list[ModelJob]:
        return [self.jobs[job_id] for job_id in dict.fromkeys(ids) if job_id in self.jobs]

    def late(self, job: ModelJob) -> bool:
        return job.spec.deadline_at is not None and job.spec.deadline_at <= self.now

    def live(self, lease: ModelLease) -> bool:
        return not lease.ended and lease.until > self.now

    def holder(self, name: str, scope: str) -> str:
        """Who acts under a lease; it is known only in the very scope it was opened in."""
        lease = self.leases.get(name)
        if lease is None or lease.tenant != scope:
            raise StaleLease("not known here")
        return lease.holder

    def held_by(self, name: str, state: State) -> list[ModelJob]:
        return [job for job in self.jobs.values() if job.lease == name and job.state is state]

    def queue(self, scope: str, name: str) -> list[ModelJob]:
        """What can be claimed, in queue order (SC-2)."""
        return [job for job in self.line(scope, name) if job.claimable]

    def line(self, scope: str, name: str) -> list[ModelJob]:
        """The same with those that wait for something else than a time."""
        jobs = [job for job in self.within(scope) if job.state is State.QUEUED and job.spec.queue == name]
        return sorted((job for job in jobs if job.due_at is None), key=lambda job: (-job.priority, job.place))
