"""``app.retention`` and ``app.usage``."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Collection
from datetime import date, datetime
from typing import Annotated, Unpack

from holdfast.engine.declared import Help, http, local_only
from holdfast.engine.hints import check_options
from holdfast.engine.names import NamedKind, kind_name, page_size
from holdfast.engine.operation import Program, awaited, operation
from holdfast.errors import InvalidSetting, NotFound
from holdfast.features.retention.model import (
    ANY,
    By,
    OrphanedFile,
    Preview,
    Retention,
    RetentionOptions,
    RetentionRule,
    RetentionTarget,
    Usage,
    check_day,
    check_groups,
    check_state,
)
from holdfast.stores.artifacts import Artifacts
from holdfast.stores.flow import run
from holdfast.stores.namespace import StoreNamespace, call
from holdfast.stores.port import Caller
from holdfast.worker.maintenance import release
from holdfast.worker.retention import archive_due, delete_all_orphans

_Policies = list[Retention]  # inside the class, `list` is an operation
_Previews = list[Preview]
_Usages = list[Usage]

Tenant = Annotated[str | None, Help("The tenant of the jobs, '*' for every tenant.", http=False, cli=False)]


class RetentionPolicies(StoreNamespace):
    """How long jobs are kept. ``tenant`` is the tenant of the jobs: the session's tenant by default, ``"*"`` for
    every tenant."""

    def __init__(self, caller: Caller, artifacts: Artifacts | None = None) -> None:
        super().__init__(caller)
        self._artifacts = artifacts
        self._declared: dict[str, RetentionRule] = {}

    @operation
    @http("PUT /retention", "admin", tenant="one", name="set_retention")
    def set(self, *, tenant: Tenant = None, **policy: Unpack[RetentionOptions]) -> Program[Retention]:
        """Set how long jobs of a kind, jobs of a state, or all jobs are kept after their end. Replaces the policy of
        the same jobs. Only the most specific policy applies: by tenant, then kind, then state.

        ``app.retention.set(clean_after="30d", purge_after="365d")``. Cleaning removes payload, result, checkpoints,
        steps and logs of a job; its tombstone and its ledger stay until it is purged. A policy without an age keeps
        jobs that a wider one would remove. Dead letters are removed only by a policy for ``"dead_letter"``. With
        ``archive``, a job stays until it is in an archive (``app.archives``).
        """
        check_options(policy, RetentionOptions.__annotations__)
        rule = RetentionRule.of(**policy)
        return (yield from run(self._store.retention.set(rule, self._actor, tenant or self._tenant)))

    aset = awaited(set)

    @operation
    @http("DELETE /retention", "admin", tenant="one", name="remove_retention")
    def remove(self, *, tenant: Tenant = None, **target: Unpack[RetentionTarget]) -> Program[None]:
        """Remove a policy. The next wider one applies; without one, jobs are kept for ever."""
        check_options(target, RetentionTarget.__annotations__)
        name, end = kind_name(target.get("kind")) or ANY, check_state(target.get("state"))
        scope = tenant or self._tenant
        if not (yield from run(self._store.retention.remove(name, end, self._actor, scope))):
            raise NotFound(
                f"no retention policy for kind {name}, state {end} in tenant {scope}", code="retention_not_found"
            )

    aremove = awaited(remove)

    @operation
    @http("GET /retention", "read", name="list_retention")
    def list(self, *, tenant: Tenant = None) -> Program[_Policies]:
        """List the policies of the tenant and those of every tenant. For a job, the most specific one applies: by
        tenant, then kind, then state."""
        return (yield from run(self._store.retention.list(tenant or self._tenant)))

    alist = awaited(list)

    @operation
    @http("GET /retention/preview", "read", name="preview_retention")
    def preview(self, *, tenant: Tenant = None) -> Program[_Previews]:
        """Show what each policy would remove now, counted up to a limit, and which consumers delay a purge."""
        return (yield from run(self._store.retention.preview(tenant or self._tenant)))

    apreview = awaited(preview)

    @operation
    @local_only("it runs until nothing is due, and deletes files of this host")
    def sweep(
        self,
        *,
        tenant: Tenant = None,
        limit: Annotated[int, Help("Stop after this many jobs.", low=1, high=100_000_000)] = 100_000,
    ) -> Program[dict[str, int]]:
        """Remove everything that is due now, without the pauses that workers take between batches.

        Returns how many jobs were cleaned and purged, rows of bookkeeping pruned, and files deleted in the artifact
        store and on this host. Ends when nothing is due, or after ``limit`` jobs.
        """
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
    @local_only("it reads the whole artifact store")
    def remove_orphans(self, *, tenant: Tenant = None) -> Program[int]:
        """Find orphaned files in the artifact store: older than a week, and of no job or a cleaned one. Workers, or a
        sweep, delete them. Only this database may use the store.

        A program that dies between storing and enqueuing leaves them. Returns how many are new.
        """
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
_DAY = "2027-01-31, or 30d for 30 days ago"


class UsageReport(StoreNamespace):
    """Attempts, run time and cost per tenant, kind and day, summed up from the ledger. The first call starts the
    counting with all existing events; workers continue it."""

    @operation
    @http("GET /usage", "read", by_hand=True)
    def list(
        self,
        *,
        by: Annotated[By | Collection[By], Help("Group by tenant, kind, day.", cli=False)] = ("kind", "day"),
        since: Annotated[Day | None, Help(f"First day (UTC): {_DAY}.", "DAY", wire=str | None)] = None,
        until: Annotated[Day | None, Help("Last day, inclusive.", "DAY", wire=str | None)] = None,
        kind: Annotated[str | NamedKind | None, Help("Only jobs of this kind.", "NAME")] = None,
        tenant: Tenant = None,
        count: Annotated[
            bool, Help("Update the counts first, or show the stored ones.", option="--count/--no-count", http=False)
        ] = True,
    ) -> Program[_Usages]:
        """Show usage: jobs, attempts, run time, wait time and cost. Usage stays after jobs are purged.

        It is grouped by ``tenant``, ``kind``, ``day`` (UTC), several of them, or ``()`` for one sum:
        ``app.usage.list(by="day", since=30)``. ``since`` and ``until`` are days, both included, or a number of days
        back. It counts new events first; ``count=False`` only reads the sums, for callers who may not write. Over HTTP
        it only reads: workers and ``count`` count.
        """
        groups = check_groups(by)
        now = yield from run(self._store.clock.now())
        first, last = check_day(since, now), check_day(until, now)
        if count:
            yield from self._count()
        return (yield from run(self._store.usage.list(groups, tenant or self._tenant, first, last, kind_name(kind))))

    alist = awaited(list)

    @operation
    @http("POST /usage/count", "operate", result="counted", by_hand=True)
    def count(self) -> Program[int]:
        """Count all events that are not counted yet. Returns their number; over HTTP, as far as one request may."""
        return (yield from self._count())

    acount = awaited(count)

    def _count(self) -> Program[int]:
        total = 0
        while done := (yield from run(self._store.usage.count(begin=True))):
            total += done
        return total
