"""Reads made of several, each in one transaction: what the CLI, the API and the dashboard show."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from holdfast.domain.agents import Agent
from holdfast.domain.job import Artifact, Attempt, Event, Job, Result
from holdfast.stores.base import Verbs
from holdfast.stores.flow import Steps, flow


@dataclass(frozen=True, slots=True)
class Story:
    """Everything about one job."""

    job: Job
    history: list[Event]
    attempts: list[Attempt]
    artifacts: list[Artifact]
    checkpoints: dict[str, Any]
    result: Result | None
    agent: Agent | None
    """Whom the job is for, if that is registered."""


@flow(writes=False)
def story(verbs: Verbs, job_id: str, tenant: str) -> Steps[Story | None]:
    job = yield from verbs.get(job_id, tenant).start()
    if job is None:
        return None
    history = yield from verbs.history(job_id, tenant).start()
    attempts = yield from verbs.attempts(job_id, tenant).start()
    artifacts = yield from verbs.artifacts(job_id, tenant).start()
    checkpoints = yield from verbs.checkpoints(job_id, tenant).start()
    result = yield from verbs.result(job_id, tenant).start()
    agent = None if job.agent is None else (yield from verbs.agent(job.agent, job.tenant).start())
    return Story(job, history, attempts, artifacts, checkpoints, result, agent)
