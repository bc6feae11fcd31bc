"""``app.retention``, ``app.usage``; the sweep and orphaned-file tasks."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Collection, Iterator
from datetime import date, datetime

from holdfast.engine.units import Duration
from holdfast.errors import InvalidSetting, NotFound
from holdfast.features.retention.model import (
    ANY,
    By,
    Leftover,
    Preview,
    Retention,
    RetentionRule,
    Usage,
    check_day,
    check_groups,
    check_state,
)
from holdfast.stores.artifacts import Artifacts, Reference
from holdfast.stores.port import Caller
from holdfast.worker.maintenance import clear_now

_Policies = list[Retention]  # inside the class the word is a method
_Previews = list[Preview]


class RetentionPolicies:
    """``tenant`` is whose jobs are meant: the app's own, unless said otherwise; ``"*"`` is every tenant's."""

    def __init__(self, caller: Caller, artifacts: Artifacts | None = None) -> None:
        self._caller = caller
        self._artifacts = artifacts
        self._declared: dict[str, RetentionRule] = {}

    def set(
        self,
        *,
        kind: str | None = None,
        state: str | None = None,
        clean_after: Duration | None = None,
        purge_after: Duration | None = None,
        tenant: str | None = None,
    ) -> Retention:
        """``app.retention.set(clean_after="30d", purge_after="1y")``, of a ``kind``, of a ``state``, or of all.

        Cleaned is what a job carried (payload, result, checkpoints, steps, logs); its tombstone and its ledger stay
        until it is purged. The most specific policy decides alone: by tenant, then kind, then state; one without an
        age keeps for ever what a wider one would let go. Dead letters go only where the state says ``"dead_letter"``.
        """
        keeping = RetentionRule.of(kind, state, clean_after, purge_after)
        caller = self._caller
        return caller.run(caller.store.retention.set(keeping, caller.actor, tenant or caller.tenant))

    def delete(self, *, kind: str | None = None, state: str | None = None, tenant: str | None = None) -> None:
        """Keep what it was about as the next wider policy says; without one for ever."""
        name, end, scope = kind or ANY, check_state(state), tenant or self._caller.tenant
        if not self._caller.run(self._caller.store.retention.remove(name, end, self._caller.actor, scope)):
            raise NotFound(
                f"there is no retention for kind {name}, state {end} in tenant {scope}", code="retention_not_found"
            )

    def list(self, *, tenant: str | None = None) -> _Policies:
        """Those of the tenant and those of every tenant."""
        return self._caller.run(self._caller.store.retention.list(tenant or self._caller.tenant))

    def preview(self, *, tenant: str | None = None) -> _Previews:
        """What each policy would do now, counted up to a limit; and who holds back a purge, if anybody does."""
        return self._caller.run(self._caller.store.retention.preview(tenant or self._caller.tenant))

    def run(self, *, tenant: str | None = None, limit: int = 100_000) -> dict[str, int]:
        """Do here and now, without resting, what workers do on the side; answers what was cleaned, purged, pruned and
        deleted in the artifact store.

        It ends when every pass has come to its end, or after ``limit`` jobs.
        """
        store, scope = self._caller.store, tenant or self._caller.tenant
        done = {"clean": 0, "purge": 0, "prune": 0, "delete": 0}
        while sum(done.values()) < limit:
            while self._caller.run(store.usage.count()):
                pass
            swept = self._caller.run(store.retention.sweep(tenant=scope))
            if swept.verb == "idle":
                break
            done[swept.verb] += swept.done
        if self._artifacts is not None:
            done["delete"] = clear_now(self._caller, self._artifacts, scope)
        return done

    def orphans(self, *, tenant: str | None = None) -> int:
        """Walk the artifact store for what belongs to no job of this database, or to one that is cleaned, and is older
        than a week: who dies between storing and enqueuing leaves such. They are put down to be deleted, as what
        cleaned jobs have left is; answers how many are new. The store must be this database's alone."""
        if self._artifacts is None:
            raise InvalidSetting(
                "no artifact store is named here",
                code="no_artifact_store",
                fix="App(artifacts=…), or HOLDFAST_ARTIFACTS: a directory, or s3://bucket/prefix.",
            )
        store, scope, new = self._caller.store, tenant or self._caller.tenant, 0
        for some in _batches(self._artifacts.references()):
            found = [Leftover(each.tenant, each.job_id, str(each)) for each in some]
            new += self._caller.run(store.retention.find_orphans(found, scope))
        return new

    def declare(self, kind: str, keeping: RetentionRule | None) -> None:
        """What the program says of one of its kinds; written down when a worker starts."""
        if keeping is not None:
            self._declared[kind] = dataclasses.replace(keeping, kind=kind)

    def put_down(self, scope: str) -> None:
        for keeping in self._declared.values():
            self._caller.run(self._caller.store.retention.set(keeping, self._caller.actor, scope))


def _batches(found: Iterator[Reference]) -> Iterator[list[Reference]]:
    while some := list(itertools.islice(found, 500)):
        yield some


Day = date | datetime | str | int


class UsageReport:
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
        now = caller.run(caller.store.clock.now())
        first, last = check_day(since, now), check_day(until, now)
        if count:
            while caller.run(caller.store.usage.count(begin=True)):
                pass
        return caller.run(caller.store.usage.list(groups, scope, first, last, kind))
