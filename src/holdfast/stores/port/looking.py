"""The part of the port that a dashboard is drawn from (JF-16): counted up to a limit, however many jobs there are."""

from __future__ import annotations

from typing import Protocol

from holdfast.domain.pulse import Pulse
from holdfast.stores.flow import Flow


class LookingVerbs(Protocol):
    def pulse(self, tenant: str) -> Flow[Pulse]:
        """How the work goes: what waits in each queue, how much was done of late, who works, what is due."""
        ...
