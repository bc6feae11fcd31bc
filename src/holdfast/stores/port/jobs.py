"""The part of the port about single jobs and all of them: looking at them, and what an operator does to them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, Protocol

from holdfast.engine.job import Artifact, Attempt, Event, Job, Result, Verdict
from holdfast.engine.order import Move
from holdfast.engine.states import State
from holdfast.features.agents.model import Circumstances
from holdfast.features.health.model import USUAL, Health, Thresholds
from holdfast.stores.flow import Flow
from holdfast.stores.requests import Counted, JobFilter, OperatorVerb, Reschedule


class JobVerbs(Protocol):
    def operate(
        self,
        verb: OperatorVerb,
        ids: Sequence[str],
        reason: str | None,
        actor: str,
        tenant: str,
        max_retries: int | None = None,
    ) -> Flow[list[Verdict]]:
        """``max_retries`` is a new limit, for a redrive."""
        ...

    def reschedule(
        self, ids: Sequence[str], when: Reschedule, reason: str | None, actor: str, tenant: str
    ) -> Flow[list[Verdict]]: ...
    def move(self, job_id: str, move: Move, reason: str | None, actor: str, tenant: str) -> Flow[Verdict]:
        """Give a waiting job another place in its queue. Places are those of the whole queue, whatever the tenant."""
        ...

    def set_clock(self, shift: timedelta, stopped: datetime | None) -> Flow[None]: ...
    def now(self) -> Flow[datetime]: ...
    def get(self, job_id: str, tenant: str) -> Flow[Job | None]: ...
    def list_jobs(self, wanted: JobFilter) -> Flow[list[Job]]: ...
    def notes(self, wanted: JobFilter) -> Flow[dict[str, dict[str, Any]]]:
        """Of the same page of jobs, the note of each that has one: what its last transition was about."""
        ...

    def chain(self, job_id: str, tenant: str) -> Flow[list[Job]]:
        """The jobs that were made of one by retrying it as new ones, the first first; it alone, if there is none."""
        ...

    def circumstances(self, job_id: str, tenant: str) -> Flow[Circumstances | None]:
        """Who holds it, who could take it, and how many are before it."""
        ...

    def history(self, job_id: str, tenant: str) -> Flow[list[Event]]: ...
    def attempts(self, job_id: str, tenant: str) -> Flow[list[Attempt]]: ...
    def artifacts(self, job_id: str, tenant: str) -> Flow[list[Artifact]]: ...
    def checkpoints(self, job_id: str, tenant: str) -> Flow[dict[str, Any]]: ...
    def result(self, job_id: str, tenant: str) -> Flow[Result | None]: ...
    def watch(self, job_id: str, tenant: str, seconds: float) -> Flow[None]:
        """Have the end of this job told to those who listen, for so many seconds."""
        ...

    def health(self, tenant: str, when: Thresholds = USUAL) -> Flow[Health]:
        """What was counted and what is to be said of it; of the database itself, see ``Store.conditions``."""
        ...

    def counts(self, tenant: str) -> Flow[dict[State, int]]: ...
    def capped_counts(self, wanted: JobFilter, most: int) -> Flow[Counted]:
        """Of those that the filter chooses, in each state; its own state is not looked at."""
        ...
