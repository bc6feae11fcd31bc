"""The part of a store's verbs that is about tenants; ``base.Verbs`` has it with the rest."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from holdfast.features.tenants.model import Tenant, TurnOf
from holdfast.stores.flow import Flow


class TenantVerbs(Protocol):
    def set_tenant(self, name: str, what: dict[str, Any], actor: str) -> Flow[None]:
        """Set what is named and leave the rest; None takes it away. The first weight has all queues shared."""
        ...

    def remove_tenant(self, name: str, actor: str) -> Flow[bool]: ...
    def tenants(self, tenant: str, most: int | None = None, names: int | None = None) -> Flow[list[Tenant]]:
        """The registered ones and those that have jobs, by their names, with what they use: counted up to ``most``, and
        no more than so many names, where a limit is given."""
        ...

    def set_fair(self, queues: Sequence[str], actor: str) -> Flow[None]:
        """From now on tenants share these queues fairly, ``*`` all of them; none: nothing is shared."""
        ...

    def fair_queues(self) -> Flow[list[str]]: ...
    def set_registered_only(self, on: bool, actor: str) -> Flow[bool]:
        """From now on jobs of tenants that are not registered are refused, or no more; whether that is a change."""
        ...

    def registered_only(self) -> Flow[bool]: ...
    def turn_of(self, job_id: str, tenant: str) -> Flow[TurnOf | None]:
        """Where a job stands in a queue that is shared; None when it does not wait there."""
        ...
