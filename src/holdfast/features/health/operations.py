"""``app.health``: the verdict on a tenant's work, and its figures."""

from __future__ import annotations

from functools import partial

from holdfast.engine.operation import Program, awaited, operation
from holdfast.features.health.model import DEFAULT_THRESHOLDS, Health, Thresholds, check_thresholds, with_concerns
from holdfast.features.health.statistics import Hour, Pulse
from holdfast.stores.flow import run
from holdfast.stores.namespace import StoreNamespace, call


class HealthChecks(StoreNamespace):
    """The state of a tenant's work. ``tenant`` is the session's tenant by default, ``"*"`` for all."""

    @operation
    def get(self, *, tenant: str | None = None, when: Thresholds = DEFAULT_THRESHOLDS) -> Program[Health]:
        """Report health: ok, warn or critical, with reasons."""
        store = self._store
        found = yield from run(store.health.get(tenant or self._tenant, check_thresholds(when)))
        conditions = yield from call(partial(store.conditions, when), partial(store.aconditions, when))
        return with_concerns(found, conditions)

    aget = awaited(get)

    @operation
    def statistics(self, *, tenant: str | None = None) -> Program[Pulse]:
        """Waiting and running jobs per queue, workers, rates and recent failures."""
        return (yield from run(self._store.health.statistics(tenant or self._tenant)))

    astatistics = awaited(statistics)

    @operation
    def last_hour(self, *, tenant: str | None = None) -> Program[Hour]:
        """The last hour minute by minute, and the jobs due next."""
        return (yield from run(self._store.health.last_hour(tenant or self._tenant)))

    alast_hour = awaited(last_hour)
