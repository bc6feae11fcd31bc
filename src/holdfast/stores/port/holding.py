"""The part of the port about what keeps jobs back: agents, executors, limits, reservations, and aging against it."""

from __future__ import annotations

from typing import Protocol

from holdfast.engine.job import EVERY_TENANT
from holdfast.engine.names import Place
from holdfast.features.agents.model import Agent, Definition, Executor
from holdfast.features.limits.model import Ask, Limit, QueueSetting, Reservation, Rule, Standing
from holdfast.stores.flow import Flow


class HoldingVerbs(Protocol):
    def register_agent(self, definition: Definition, tenant: str, actor: str | None = None) -> Flow[Agent]:
        """New, or in place of the definition there is; whether it is disabled is not touched."""
        ...

    def disable_agent(self, agent: str, reason: str, actor: str, tenant: str) -> Flow[Agent | None]:
        """From now on nothing is enqueued for it and what waits is not begun; None when nobody registered it."""
        ...

    def drain_agent(self, agent: str, tenant: str) -> Flow[bool]:
        """Wait for those who still found it enabled; False if one of them has not ended."""
        ...

    def enable_agent(self, agent: str, tenant: str, actor: str | None = None) -> Flow[Agent | None]: ...
    def resume_agent(self, agent: str, want: int, tenant: str) -> Flow[int]:
        """Bring back jobs that were put off while their agent was disabled."""
        ...

    def agent(self, agent: str, tenant: str) -> Flow[Agent | None]: ...
    def agents(
        self,
        tenant: str,
        kind: str | None = None,
        disabled: bool | None = None,
        after: Place | None = None,
        limit: int | None = None,
    ) -> Flow[list[Agent]]:
        """By their ids, of several tenants one after the other; those for one kind, the disabled ones or the others."""
        ...

    def add_executor(self, label: str, role: str, actor: str) -> Flow[Executor]: ...
    def remove_executor(self, label: str, actor: str | None = None) -> Flow[bool]: ...
    def executors(self) -> Flow[list[Executor]]: ...
    def set_limit(self, rule: Rule, actor: str, tenant: str) -> Flow[Limit]:
        """New, or in place of the one there is. What runs already counts."""
        ...

    def remove_limit(self, scope: str, name: str, actor: str, tenant: str) -> Flow[bool]: ...
    def limits(self, tenant: str) -> Flow[list[Limit]]: ...
    def attend_limits(self, want: int = 1000, tenant: str = EVERY_TENANT) -> Flow[int]:
        """End reservations that nobody keeps alive, and let parked jobs go on that have room by now."""
        ...

    def reserve(self, ask: Ask, actor: str, tenant: str) -> Flow[Standing]:
        """Ask for a reservation, or keep alive the one that was asked for under this id."""
        ...

    def release_reservation(self, reservation_id: str, why: str, actor: str, tenant: str) -> Flow[bool]: ...
    def reservation(self, reservation_id: str, tenant: str) -> Flow[Reservation | None]: ...
    def reservations(self, tenant: str, ended: bool = False, limit: int = 50) -> Flow[list[Reservation]]:
        """Those that wait or are active, in their order; with ``ended`` the rest too, newest first."""
        ...

    def set_aging(
        self, queue: str, every: float | None, step: int, most: int, actor: str, tenant: str
    ) -> Flow[QueueSetting | None]:
        """From now on waiting counts in a queue; None ends that."""
        ...

    def queue_settings(self, tenant: str) -> Flow[list[QueueSetting]]: ...
    def age_queues(self, want: int = 1000, tenant: str = EVERY_TENANT) -> Flow[int]: ...
