"""All there is to know about one job and what is around it: what ``why`` looks at. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final

from holdfast.domain.agents import Agent
from holdfast.domain.circumstances import Circumstances, Executor, WorkerSeen
from holdfast.domain.dead_letters import DeadLetterGroup
from holdfast.domain.gates import Gate
from holdfast.domain.limits import Limit
from holdfast.domain.reservations import Reservation
from holdfast.domain.switches import Switch
from holdfast.domain.tenants import TurnOf
from holdfast.domain.workflows import ParentResult
from holdfast.engine.job import EVERY_TENANT, Event, Job
from holdfast.engine.states import State
from holdfast.engine.steps import Step

WAITING: Final = frozenset({State.QUEUED, State.RETRY_WAITING})


@dataclass(frozen=True, slots=True)
class Scene:
    """All there is to know about it."""

    job: Job
    around: Circumstances
    history: list[Event]
    steps: list[Step]
    gate: Gate | None
    agent: Agent | None
    executors: list[Executor]
    successor: Job | None
    parents: list[ParentResult] = field(default_factory=list)
    limits: list[Limit] = field(default_factory=list)
    reservations: list[Reservation] = field(default_factory=list)
    switches: list[Switch] = field(default_factory=list)
    turn: TurnOf | None = None
    """Where it stands, if its queue is shared between tenants."""
    group: DeadLetterGroup | None = None
    """Of a dead letter: those that failed for the same reason."""

    def last(self, *verbs: str) -> Event | None:
        return next((event for event in reversed(self.history) if event.verb in verbs), None)

    @property
    def waits_in(self) -> Step | None:
        """The durable call that it waits in."""
        if self.job.state is not State.RETRY_WAITING:
            return None
        waits = (step for step in self.steps if not step.over and step.wake_at == self.job.due_at)
        return next(waits, None)

    @property
    def is_due(self) -> bool:
        """It waits for nobody but a worker."""
        job = self.job
        late = job.due_at is not None and job.due_at <= self.around.now
        ready = (job.state is State.QUEUED and job.due_at is None) or (job.state in WAITING and late)
        return ready and "held" not in self.around.note

    @property
    def fitting(self) -> list[WorkerSeen]:
        """The living workers that serve its tenant."""
        return [worker for worker in self.around.workers if worker.tenant in (self.job.tenant, EVERY_TENANT)]

    @property
    def ahead(self) -> int | None:
        """How many stand before it: of its own tenant, where tenants share the queue."""
        return self.around.ahead if self.turn is None else self.turn.ahead

    @property
    def others(self) -> int:
        """Tenants that it takes turns with."""
        return 0 if self.turn is None else max(0, self.turn.tenants - 1)

    def taking(self) -> list[WorkerSeen]:
        """Those that would take it: of its tenant, its queue and its kind."""
        return [
            worker
            for worker in self.fitting
            if (worker.queues is None or self.job.queue in worker.queues)
            and (worker.kinds is None or self.job.kind in worker.kinds)
        ]


def at(moment: datetime | None) -> str:
    return "some time" if moment is None else f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"
