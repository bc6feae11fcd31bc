"""The properties of ``ctx`` that describe the running job."""

from __future__ import annotations

from datetime import datetime

from holdfast.engine.trace import Trace, plain_tags
from holdfast.steps.handler_run import HandlerRun


class Facts:
    """The facts of a running job. They come from the claim and do not change during the attempt."""

    __slots__ = ("_run",)

    def __init__(self, run: HandlerRun) -> None:
        self._run = run

    def __repr__(self) -> str:
        return f"{type(self).__name__}(job_id={self.job_id!r}, kind={self.kind!r}, attempt={self.attempt})"

    @property
    def job_id(self) -> str:
        return self._run.claim.id

    @property
    def tenant(self) -> str:
        return self._run.claim.tenant

    @property
    def kind(self) -> str:
        return self._run.claim.kind

    @property
    def queue(self) -> str:
        return self._run.claim.queue

    @property
    def priority(self) -> int:
        return self._run.claim.priority

    @property
    def tags(self) -> tuple[str, ...]:
        return plain_tags(self._run.claim.tags)

    @property
    def trace(self) -> Trace:
        """The trace of this execution (``ctx.trace.traceparent``): the producer's, or one derived from the job's id."""
        return self._run.claim.trace

    @property
    def agent(self) -> str | None:
        return self._run.claim.agent

    @property
    def attempt(self) -> int:
        """The number of this attempt, from 1. Every start counts: failures, lost workers, snoozes, redrives."""
        return self._run.claim.attempt

    @property
    def retries(self) -> int:
        """Failed attempts since the last redrive."""
        return self._run.claim.retries

    @property
    def crashes(self) -> int:
        """Workers lost while they ran this job, since the last redrive."""
        return self._run.claim.crashes

    @property
    def max_attempts(self) -> int:
        return self._run.claim.max_attempts

    @property
    def is_last_attempt(self) -> bool:
        """Whether a failure of this attempt makes the job a dead letter."""
        return self._run.claim.retries + 1 >= self._run.claim.max_attempts

    @property
    def created_at(self) -> datetime:
        return self._run.claim.created_at

    @property
    def deadline_at(self) -> datetime | None:
        return self._run.claim.deadline_at

    @property
    def correlation_id(self) -> str | None:
        return self._run.claim.correlation_id

    @property
    def parent_id(self) -> str | None:
        return self._run.claim.parent_id

    @property
    def workflow_id(self) -> str | None:
        return self._run.claim.workflow_id

    @property
    def idempotency_key(self) -> str:
        """The same text in every attempt. Pass it to services that accept an idempotency key."""
        return f"{self._run.claim.tenant}:{self._run.claim.kind}:{self._run.claim.id}"
