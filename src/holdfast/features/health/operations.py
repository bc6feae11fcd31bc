"""``app.health``: the verdict on a tenant's work, and its figures."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Literal

from holdfast.engine.declared import Help, http
from holdfast.engine.names import check_name
from holdfast.engine.operation import Program, awaited, operation
from holdfast.errors import InvalidSetting
from holdfast.features.health.model import DEFAULT_THRESHOLDS, Health, Thresholds, check_thresholds, with_concerns
from holdfast.features.health.statistics import RANGES, Activity, Statistics
from holdfast.stores.flow import run
from holdfast.stores.namespace import StoreNamespace, call

Tenant = Annotated[str | None, Help("The tenant of the jobs, '*' for every tenant.", http=False, cli=False)]
Range = Literal["15m", "1h", "6h", "24h", "7d"]


class HealthChecks(StoreNamespace):
    """The state of a tenant's work. ``tenant`` is the session's tenant by default, ``"*"`` for all."""

    @operation
    @http("GET /health", "read")
    def get(
        self,
        *,
        tenant: Tenant = None,
        when: Annotated[Thresholds, Help("When a count becomes a reason.", http=False, cli=False)] = DEFAULT_THRESHOLDS,
        domain: Annotated[str | None, Help("Only jobs of the kinds of this domain.", "NAME")] = None,
    ) -> Program[Health]:
        """Report health: ok, warn or critical, with reasons."""
        store = self._store
        only = None if domain is None else check_name(domain, "domain")
        health = yield from run(store.health.get(tenant or self._tenant, check_thresholds(when), only))
        if only is not None:
            return health
        conditions = yield from call(partial(store.conditions, when), partial(store.aconditions, when))
        return with_concerns(health, conditions)

    aget = awaited(get)

    @operation
    @http("GET /health/statistics", "read", name="show_statistics")
    def statistics(self, *, tenant: Tenant = None) -> Program[Statistics]:
        """Show waiting and running jobs per queue, workers, rates and recent failures."""
        return (yield from run(self._store.health.statistics(tenant or self._tenant)))

    astatistics = awaited(statistics)

    @operation
    @http("GET /health/activity", "read", name="show_activity")
    def activity(
        self,
        *,
        range: Annotated[Range, Help("How far back.")] = "1h",
        by: Annotated[
            Literal["queue", "kind"] | None, Help("Also count the succeeded jobs of each queue or kind, as `series`.")
        ] = None,
        tenant: Tenant = None,
    ) -> Program[Activity]:
        """Show the jobs enqueued, succeeded and failed over a range, and the schedules due next."""
        if range not in list(RANGES):  # a list, so that unhashable values are refused, too
            raise InvalidSetting(f"range is one of {', '.join(RANGES)}, not {range!r}", code="invalid_setting")
        if by not in (None, "queue", "kind"):
            raise InvalidSetting(f"by is queue or kind, not {by!r}", code="invalid_setting")
        return (yield from run(self._store.health.activity(tenant or self._tenant, range, by)))

    aactivity = awaited(activity)
