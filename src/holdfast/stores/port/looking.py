"""The part of the port that says how the work stands and went (JF-15, JF-16): counted up to a limit, however much there
is; ``base.Verbs`` has it with the rest."""

from __future__ import annotations

from typing import Protocol

from holdfast.features.health.statistics import Hour, Pulse, Standing
from holdfast.stores.flow import Flow


class LookingVerbs(Protocol):
    def pulse(self, tenant: str) -> Flow[Pulse]:
        """How the work stands now: queue by queue what waits and runs, who works, what failed of late."""
        ...

    def standing(self, tenant: str) -> Flow[Standing]:
        """Of that only what waits and runs queue by queue, and who works: all that a page shows of it."""
        ...

    def hour(self, tenant: str) -> Flow[Hour]:
        """How the last hour went, minute by minute, and what is due next: a longer look than the pulse."""
        ...
