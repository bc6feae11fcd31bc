"""What a handler can know of its job: fixed for the attempt, as it was claimed."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from holdfast.engine.job import Claim
from holdfast.engine.trace import Trace, plain_tags


@dataclass(slots=True, eq=False)
class Facts:
    """What is fixed for this attempt, as it was claimed."""

    claim: Claim

    @property
    def job_id(self) -> str:
        return self.claim.id

    @property
    def tenant(self) -> str:
        return self.claim.tenant

    @property
    def kind(self) -> str:
        return self.claim.kind

    @property
    def queue(self) -> str:
        return self.claim.queue

    @property
    def priority(self) -> int:
        return self.claim.priority

    @property
    def tags(self) -> tuple[str, ...]:
        return plain_tags(self.claim.tags)

    @property
    def trace(self) -> Trace | None:
        """The trace it belongs to (``ctx.trace.traceparent``), if it was enqueued within one."""
        return self.claim.trace

    @property
    def agent(self) -> str | None:
        return self.claim.agent

    @property
    def attempt(self) -> int:
        """The first is 1. Everything that began the handler counts: failures, lost workers, snoozes, redrives."""
        return self.claim.attempt

    @property
    def retries(self) -> int:
        """How many tries failed before, since the last redrive."""
        return self.claim.retries

    @property
    def crashes(self) -> int:
        """How many workers were lost with this job in their hands, since the last redrive."""
        return self.claim.crashes

    @property
    def max_attempts(self) -> int:
        return self.claim.max_retries + 1

    @property
    def is_last_attempt(self) -> bool:
        """If it fails now, it is a dead letter."""
        return self.claim.retries >= self.claim.max_retries

    @property
    def created_at(self) -> datetime:
        return self.claim.created_at

    @property
    def deadline_at(self) -> datetime | None:
        return self.claim.deadline_at

    @property
    def correlation_id(self) -> str | None:
        return self.claim.correlation_id

    @property
    def parent_id(self) -> str | None:
        return self.claim.parent_id

    @property
    def workflow_id(self) -> str | None:
        return self.claim.workflow_id

    @property
    def idempotency_key(self) -> str:
        """The same in every attempt: give it to the outside world."""
        return f"{self.claim.tenant}:{self.claim.kind}:{self.claim.id}"
