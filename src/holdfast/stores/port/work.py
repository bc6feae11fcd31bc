"""The part of the port that a worker lives by: jobs are enqueued, claimed under a lease and settled under the same."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from holdfast.engine.job import EVERY_TENANT, Claim, Enqueued, Holding, JobSpec, Lease, Sweep, Turn
from holdfast.engine.settlement import Settlement
from holdfast.engine.steps import Saved, Step, StepEntry
from holdfast.stores.flow import Flow
from holdfast.stores.requests import ClaimRequest


class WorkVerbs(Protocol):
    def enqueue(self, specs: Sequence[JobSpec], tenant: str) -> Flow[list[Enqueued]]: ...
    def open_lease(
        self,
        holder: str,
        ttl: float,
        tenant: str,
        name: str = "worker",
        kinds: Sequence[str] | None = None,
        queues: Sequence[str] | None = None,
        slots: int | None = None,
    ) -> Flow[Lease]:
        """``kinds`` are those the holder has handlers for, ``queues`` and ``slots`` where it takes jobs from and how
        many at a time, so that it can be said why a job waits; None when it may be any."""
        ...

    def renew_lease(self, lease: str, ttl: float, tenant: str) -> Flow[bool]: ...
    def end_lease(self, lease: str, why: str, tenant: str) -> Flow[bool]: ...
    def turn(self, settlements: Sequence[Settlement], request: ClaimRequest) -> Flow[Turn]:
        """Settle and claim under the request's lease, in one transaction and one round trip."""
        ...

    def recalls(self, lease: str, tenant: str) -> Flow[int | None]:
        """How often a job was taken from under this lease; None when there is no such lease."""
        ...

    def holdings(self, lease: str, tenant: str) -> Flow[list[Holding]]: ...
    def claim(self, request: ClaimRequest) -> Flow[list[Claim]]: ...
    def start(self, lease: str, ids: Sequence[str], tenant: str) -> Flow[dict[str, int]]: ...
    def release(self, lease: str, ids: Sequence[str], tenant: str) -> Flow[list[str]]: ...
    def settle(self, lease: str, settlements: Sequence[Settlement], tenant: str) -> Flow[list[str]]: ...
    def save_checkpoint(
        self, claim_id: str, lease: str, attempt: int, name: str, value: str, tenant: str
    ) -> Flow[bool]: ...
    def add_artifact(
        self,
        claim_id: str,
        lease: str,
        attempt: int,
        name: str,
        ref: str,
        tenant: str,
        meta: dict[str, Any] | None = None,
    ) -> Flow[bool]: ...
    def asks_first(self, agent: str, tenant: str) -> Flow[bool]:
        """Whether people are to be asked before a job of this agent is run."""
        ...

    def save_steps(self, lease: str, entries: Sequence[tuple[str, int, StepEntry]], tenant: str) -> Flow[list[Saved]]:
        """Remember steps that are over, each with its job and attempt. Answers only what is out of the ordinary."""
        ...

    def steps(self, job_id: str, tenant: str) -> Flow[list[Step]]: ...
    def rewind(self, job_id: str, to: int, actor: str, tenant: str) -> Flow[int | None]:
        """Forget the steps of a dead letter from place ``to`` on; None when there is no such dead letter."""
        ...

    def promote_due(self, want: int = 1000, tenant: str = EVERY_TENANT) -> Flow[int]: ...
    def expire_overdue(self, want: int = 1000, tenant: str = EVERY_TENANT) -> Flow[int]: ...
    def reap_lapsed(self, want: int = 1000, tenant: str = EVERY_TENANT) -> Flow[Sweep]: ...
    def set_aside(
        self,
        lease: str | None,
        queues: Sequence[str],
        kinds: Sequence[str] | None = None,
        want: int = 1000,
        tenant: str = EVERY_TENANT,
    ) -> Flow[list[str]]:
        """After a claim or a maintenance task was refused: find the jobs whose rows the database will not move, and
        pass them over for ten minutes. Answers their ids. Without a lease, those of maintenance only."""
        ...
