"""``app.health``: the verdict on a tenant's work, and its figures."""

from __future__ import annotations

from functools import partial
from typing import Literal

from holdfast.engine.names import check_name
from holdfast.engine.operation import Program, awaited, operation
from holdfast.errors import InvalidSetting
from holdfast.features.health.model import DEFAULT_THRESHOLDS, Health, Thresholds, check_thresholds, with_concerns
from holdfast.features.health.statistics import RANGES, Activity, Pulse
from holdfast.stores.flow import run
from holdfast.stores.namespace import StoreNamespace, call


class HealthChecks(StoreNamespace):
    """The state of a tenant's work. ``tenant`` is the session's tenant by default, ``"*"`` for all."""

    @operation
    def get(
        self, *, tenant: str | None = None, when: Thresholds = DEFAULT_THRESHOLDS, domain: str | None = None
    ) -> Program[Health]:
        """Report health: ok, warn or critical, with reasons; with a ``domain``, of the jobs of its kinds alone."""
        store = self._store
        only = None if domain is None else check_name(domain, "domain")
        health = yield from run(store.health.get(tenant or self._tenant, check_thresholds(when), only))
        if only is not None:
            return health
        conditions = yield from call(partial(store.conditions, when), partial(store.aconditions, when))
        return with_concerns(health, conditions)

    aget = awaited(get)

    @operation
    def statistics(self, *, tenant: str | None = None) -> Program[Pulse]:
        """Waiting and running jobs per queue, workers, rates and recent failures."""
        return (yield from run(self._store.health.statistics(tenant or self._tenant)))

    astatistics = awaited(statistics)

    @operation
    def activity(
        self, *, range: str = "1h", by: Literal["queue", "kind"] | None = None, tenant: str | None = None
    ) -> Program[Activity]:
        """Jobs enqueued, succeeded and failed over a range, and the schedules due next. ``range`` is ``15m``, ``1h``,
        ``6h``, ``24h`` or ``7d``; with ``by``, ``series`` has the succeeded jobs of each queue or kind."""
        if range not in list(RANGES):  # a list, so that unhashable values are refused, too
            raise InvalidSetting(f"range is one of {', '.join(RANGES)}, not {range!r}", code="invalid_setting")
        if by not in (None, "queue", "kind"):
            raise InvalidSetting(f"by is queue or kind, not {by!r}", code="invalid_setting")
        return (yield from run(self._store.health.activity(tenant or self._tenant, range, by)))

    aactivity = awaited(activity)
