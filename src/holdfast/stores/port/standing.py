"""The part of the port that says how queues and workers stand; ``base.Verbs`` has it with the rest."""

from __future__ import annotations

from typing import Protocol

from holdfast.domain.standing import QueueStanding, WorkerStanding
from holdfast.stores.flow import Flow


class StandingVerbs(Protocol):
    def queue_standings(self, tenant: str) -> Flow[list[QueueStanding]]:
        """Queues in which something waits or runs, by their names. It costs no more the more jobs there are."""
        ...

    def worker_standings(self, tenant: str) -> Flow[list[WorkerStanding]]:
        """Leases that are alive, of this tenant and of those who work for all, the one renewed last first."""
        ...
