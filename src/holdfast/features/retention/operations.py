"""``app.retention`` and ``app.usage``."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Collection
from datetime import date, datetime

from holdfast.engine.names import NamedKind, kind_name, page_size
from holdfast.engine.operation import Program, awaited, operation
from holdfast.engine.units import Duration
from holdfast.errors import InvalidSetting, NotFound
from holdfast.features.retention.model import (
    ANY,
    By,
    OrphanedFile,
    Preview,
    Retention,
    RetentionRule,
    Usage,
    check_day,
    check_groups,
    check_state,
)
from holdfast.stores.artifacts import Artifacts
from holdfast.stores.flow import run
from holdfast.stores.namespace import StoreNamespace, call
from holdfast.stores.port import Caller
from holdfast.worker.archiving import archive_due
from holdfast.worker.maintenance import delete_all_orphans, release

_Policies = list[Retention]  # inside the class, `list` is an operation
_Previews = list[Preview]
_Usages = list[Usage]


class RetentionPolicies(StoreNamespace):
    """How long jobs are kept. ``tenant`` is the tenant of the jobs: the session's tenant by default, ``"*"`` for
    every tenant."""

    def __init__(self, caller: Caller, artifacts: Artifacts | None = None) -> None:
        super().__init__(caller)
        self._artifacts = artifacts
        self._declared: dict[str, RetentionRule] = {}

    @operation
    def set(
        self,
        *,
        kind: str | NamedKind | None = None,
        state: str | None = None,
        clean_after: Duration | None = None,
        purge_after: Duration | None = None,
        archive: bool = False,
        tenant: str | None = None,
    ) -> Program[Retention]:
        """Set a policy for a ``kind``, a ``state``, or all jobs:
        ``app.retention.set(clean_after="30d", purge_after="365d")``.

        Cleaning removes payload, result, checkpoints, steps and logs of a job; its tombstone and its ledger stay until
        it is purged. Only the most specific policy applies: by tenant, then kind, then state. A policy without an age
        keeps jobs that a wider one would remove. Dead letters are removed only by a policy for ``"dead_letter"``. With
        ``archive``, a job stays until it is in an archive (``app.archives``).
        """
        rule = RetentionRule.of(kind_name(kind), state, clean_after, purge_after, archive)
        return (yield from run(self._store.retention.set(rule, self._actor, tenant or self._tenant)))

    aset = awaited(set)

    @operation
    def remove(
        self, *, kind: str | NamedKind | None = None, state: str | None = None, tenant: str | None = None
    ) -> Program[None]:
        """Remove a policy. The next wider one applies; without one, jobs are kept for ever."""
        name, end, scope = kind_name(kind) or ANY, check_state(state), tenant or self._tenant
        if not (yield from run(self._store.retention.remove(name, end, self._actor, scope))):
            raise NotFound(
                f"no retention policy for kind {name}, state {end} in tenant {scope}", code="retention_not_found"
            )

    aremove = awaited(remove)

    @operation
    def list(self, *, tenant: str | None = None) -> Program[_Policies]:
        """Policies of the tenant and those of every tenant."""
        return (yield from run(self._store.retention.list(tenant or self._tenant)))

    alist = awaited(list)

    @operation
    def preview(self, *, tenant: str | None = None) -> Program[_Previews]:
        """What each policy would remove now, counted up to a limit, and which consumer holds back a purge."""
        return (yield from run(self._store.retention.preview(tenant or self._tenant)))

    apreview = awaited(preview)

    @operation
    def sweep(self, *, tenant: str | None = None, limit: int = 100_000) -> Program[dict[str, int]]:
        """Apply the policies now in this process, without the pauses of workers. Returns how many jobs were cleaned and
        purged, rows of bookkeeping pruned, and files deleted in the artifact store and on this host. Ends when nothing
        is due, or after ``limit`` jobs."""
        store, scope, most = self._store, tenant or self._tenant, page_size(limit)
        if self._artifacts is not None:  # jobs that have to be archived first would be held back
            yield from archive_due(store, self._artifacts, self._actor, scope, most)
        done = {"clean": 0, "purge": 0, "prune": 0, "delete": 0}
        seal = True
        while sum(done.values()) < most:
            while (yield from run(store.usage.count())):
                pass
            # A purge waits until the events of its jobs are sealed, also those of the cleaning. A pass that finds them
            # unsealed would wait ten seconds before it looks again.
            while seal and (yield from run(store.audit.seal(release()))):
                pass
            result = yield from run(store.retention.sweep(tenant=scope))
            if result.action == "idle":
                break
            done[result.action] += result.done
            seal = result.action in ("clean", "purge")
        done["delete"] = yield from delete_all_orphans(store, self._artifacts, scope)
        return done

    asweep = awaited(sweep)

    @operation
    def remove_orphans(self, *, tenant: str | None = None) -> Program[int]:
        """Find orphaned files in the artifact store: files older than a week that belong to no job of this database, or
        to a cleaned one. A program that dies between storing and enqueuing leaves them. They are recorded for deletion,
        like the files of cleaned jobs. Returns how many are new. The artifact store must belong to this database
        alone."""
        if self._artifacts is None:
            raise InvalidSetting(
                "no artifact store is configured",
                code="no_artifact_store",
                fix="Set App(artifacts=…) or HOLDFAST_ARTIFACTS to a directory or s3://bucket/prefix.",
            )
        references, new = self._artifacts.references(), 0
        while batch := (yield from call(lambda: tuple(itertools.islice(references, 500)))):
            files = [OrphanedFile(reference.tenant, reference.job_id, str(reference)) for reference in batch]
            new += yield from run(self._store.retention.find_orphans(files, tenant or self._tenant))
        return new

    aremove_orphans = awaited(remove_orphans)

    def _declare(self, kind: str, rule: RetentionRule | None) -> None:
        """Remember a policy that the code declares until a worker starts."""
        if rule is not None:
            self._declared[kind] = dataclasses.replace(rule, kind=kind)

    def _sync_declarations(self, tenant: str) -> None:
        for rule in self._declared.values():
            self._caller.run(self._store.retention.set(rule, self._actor, tenant))


Day = date | datetime | str | int


class UsageReport(StoreNamespace):
    """Attempts, run time and cost per tenant, kind and day, summed up from the ledger. The first call starts the
    counting with all existing events; workers continue it."""

    @operation
    def list(
        self,
        *,
        by: By | Collection[By] = ("kind", "day"),
        since: Day | None = None,
        until: Day | None = None,
        kind: str | NamedKind | None = None,
        tenant: str | None = None,
        count: bool = True,
    ) -> Program[_Usages]:
        """Usage by ``tenant``, ``kind``, ``day`` (UTC), several of them, or ``()`` for one sum:
        ``app.usage.list(by="day", since=30)``.

        ``since`` and ``until`` are days, both included, or a number of days back. It counts new events first;
        ``count=False`` only reads the sums, for callers who may not write.
        """
        groups = check_groups(by)
        now = yield from run(self._store.clock.now())
        first, last = check_day(since, now), check_day(until, now)
        if count:
            yield from self._count()
        return (yield from run(self._store.usage.list(groups, tenant or self._tenant, first, last, kind_name(kind))))

    alist = awaited(list)

    @operation
    def count(self) -> Program[int]:
        """Count all events that are not counted yet. Returns their number."""
        return (yield from self._count())

    acount = awaited(count)

    def _count(self) -> Program[int]:
        total = 0
        while done := (yield from run(self._store.usage.count(begin=True))):
            total += done
        return total
