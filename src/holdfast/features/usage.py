"""Usage (HK-5), as ``app.usage``: what ran, for how long and at what cost, by tenant, kind and day."""

from __future__ import annotations

from collections.abc import Collection
from datetime import date, datetime

from holdfast.domain.usage import By, Usage, check_day, check_groups
from holdfast.stores.base import Caller

Day = date | datetime | str | int


class Metering:
    """Called, it counts what has not been counted yet, and answers the sums. The first call begins the counting, with
    all that the ledger still has; from then on workers go on with it."""

    def __init__(self, caller: Caller) -> None:
        self._caller = caller

    def __call__(
        self,
        *,
        by: By | Collection[By] = ("kind", "day"),
        since: Day | None = None,
        until: Day | None = None,
        kind: str | None = None,
        tenant: str | None = None,
        count: bool = True,
    ) -> list[Usage]:
        """``app.usage(by="day", since=30)``: by ``tenant``, ``kind``, ``day`` (UTC), several, or ``()`` for one sum.

        ``since`` and ``until`` are days, both included, or a number of days back. With ``count=False`` nothing is
        counted first: for whoever may only read.
        """
        caller, scope = self._caller, tenant or self._caller.tenant
        groups = check_groups(by)
        now = caller.run(caller.verbs.now())
        first, last = check_day(since, now), check_day(until, now)
        if count:
            while caller.run(caller.verbs.count_usage(begin=True)):
                pass
        return caller.run(caller.verbs.usage(groups, scope, first, last, kind))
