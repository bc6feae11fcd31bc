"""The maintenance tasks of every worker: promote, expire, reap, seal, retention, subscriptions, bulk operations.

Every task works in short transactions and claims the rows it works on. So any number of workers may run the same task,
and a worker may die at any point.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from holdfast.engine.job import EVERY_TENANT, Sweep
from holdfast.engine.operation import Program
from holdfast.engine.settlement import storable
from holdfast.errors import InvalidInput, Refused, StoreUnavailable
from holdfast.features.attempts.model import FILE_SCHEME
from holdfast.features.retention.model import OrphanedFile
from holdfast.stores.artifacts import Artifacts, Reference
from holdfast.stores.due import KNOWN, DueWork, maintaining
from holdfast.stores.flow import Flow, in_thread, run
from holdfast.stores.host_files import host_name, remove_directory
from holdfast.stores.namespace import call
from holdfast.worker.refusals import set_aside

if TYPE_CHECKING:
    from holdfast.features.assembly import Store

log = logging.getLogger("holdfast.worker")

# --- retention ---

SLICES, PAGES = 20, 50
"""Slices and pages per run; the next run continues."""
SWEEP_JOBS, SWEEP_ROWS, USAGE_PAGE = 200, 2000, 2000
REST = 19.0
"""The pause after a slice, as a multiple of its duration: retention uses a twentieth of one connection at most."""
LONGEST_REST = 2.0


async def sweep(store: Store, *, tenant: str, slices: int = SLICES) -> int:
    """Count usage, then clean and purge jobs past their retention, one slice per transaction.

    After a very busy hour counting falls behind, and jobs that are not counted yet are not purged yet. Returns 0, as it
    makes no job ready. Usually it is two queries of two small tables.
    """
    pages = PAGES if slices > 1 else 1
    with _unless_pinned():
        await _count_usage(store, pages)
    for left in range(slices, 0, -1):
        began = time.monotonic()
        swept = await store.arun(store.retention.sweep(SWEEP_JOBS, SWEEP_ROWS, tenant))
        if swept.held_by is not None and swept.held_by.startswith(("consumer", "subscription")):
            log.warning("%s jobs are past their retention, but %s has not read their events", swept.held, swept.held_by)
        if swept.action == "idle" or left == 1:
            break
        if swept.looked:
            await asyncio.sleep(min(LONGEST_REST, REST * (time.monotonic() - began)))
    return 0


@contextlib.contextmanager
def _unless_pinned() -> Iterator[None]:
    """Skip work for all tenants if the database login is pinned to one tenant: other workers do it."""
    try:
        yield
    except Refused as error:
        if error.code != "tenant_pinned":
            raise


async def _count_usage(store: Store, pages: int) -> None:
    for left in range(pages, 0, -1):
        began = time.monotonic()
        if await store.arun(store.usage.count(USAGE_PAGE)) < USAGE_PAGE or left == 1:
            return
        await asyncio.sleep(min(LONGEST_REST, REST * (time.monotonic() - began)))


# --- subscriptions ---

FEED_PAGE = 500
"""Events read in one transaction: its locks (embedded: the write lock) are held for a few milliseconds."""
FEED_PAGES = 20
"""Pages read of one subscription before the next subscription is read."""


async def feed(store: Store, *, tenant: str) -> int:
    """Create the jobs of subscriptions. Returns their number. Usually it is one query of an empty table."""
    made = 0
    for scope, name, id in await store.arun(store.subscriptions.active(tenant)):
        try:
            for _ in range(FEED_PAGES):
                fed = await store.arun(store.subscriptions.feed(name, FEED_PAGE, scope))
                made += fed.made
                if fed.refused:
                    log.warning("Subscription %s: %s events created no job", name, fed.refused)
                if fed.seen < FEED_PAGE:
                    break
        except StoreUnavailable:
            raise
        except Refused as error:
            # It was paused or changed meanwhile, or its jobs are not accepted now: it keeps its position. Other
            # refusals, of its idempotency key for example, are recorded.
            if error.code not in ("subscription_changed", "paused"):
                await _record_failure(store, scope, name, id, error)
        except Exception as error:  # it is retried at the next run, and must not stop the other subscriptions
            await _record_failure(store, scope, name, id, error)
    return made


async def _record_failure(store: Store, scope: str, name: str, id: str, error: Exception) -> None:
    failure = storable(str(error)) or type(error).__name__
    recorded = await store.arun(store.subscriptions.get(name, scope))
    if recorded is None or recorded.failure != failure:  # logged once, although it is retried at each run
        log.warning("Subscription %s failed: %s", name, error)
    await store.arun(store.subscriptions.failed(id, failure, scope))


# --- orphaned files ---

# Files that jobs no longer refer to: payloads, results, artifacts, steps, checkpoints and logs in the artifact store,
# and directories of command jobs on this host. The transaction that cleans a job or replaces its checkpoint lists them.
# They are deleted first and removed from the list then: after a crash in between they are deleted again, which is
# harmless.
BATCH, BATCHES = 100, 20


async def delete_orphans(store: Store, *, artifacts: Artifacts | None, tenant: str, batches: int = BATCHES) -> int:
    """Delete orphaned files. Returns 0, as it makes no job ready. Usually it is one query of a small table."""
    for _ in range(batches):
        orphans = await store.arun(store.retention.orphans(BATCH, tenant, host_name(), artifacts is not None))
        if not orphans:
            break
        deleted = await in_thread(_delete, artifacts, orphans)
        await store.arun(store.retention.forget_orphans(deleted, tenant))
    return 0


def delete_all_orphans(store: Store, artifacts: Artifacts | None, tenant: str) -> Program[int]:
    """Delete all orphaned files that can be reached from here. Returns their number."""
    count, stored = 0, artifacts is not None
    while orphans := (yield from run(store.retention.orphans(BATCH, tenant, host_name(), stored))):
        deleted = yield from call(partial(_delete, artifacts, orphans))
        count += yield from run(store.retention.forget_orphans(deleted, tenant))
    return count


def _delete(artifacts: Artifacts | None, orphans: Sequence[OrphanedFile]) -> list[str]:
    """Delete the files that exist here, and return their references. The others may be in an artifact store or on a
    host that another worker reaches; the database drops them from the list if no worker does."""
    return [orphan.ref for orphan in orphans if _delete_one(artifacts, orphan)]


def _delete_one(artifacts: Artifacts | None, orphan: OrphanedFile) -> bool:
    if orphan.ref.startswith(FILE_SCHEME):
        try:
            return remove_directory(orphan.ref, orphan.job_id)
        except Refused:  # a row that was written by hand
            return False
    if artifacts is None or not _is_own(orphan) or not artifacts.exists(orphan.ref, tenant=orphan.tenant):
        return False
    artifacts.delete(orphan.ref, tenant=orphan.tenant)
    return True


def _is_own(orphan: OrphanedFile) -> bool:
    """Workers that write SQL may have listed any text. It must not stop the deletion of the others."""
    try:
        return Reference.of(orphan.ref).tenant == orphan.tenant
    except InvalidInput:
        return False


# --- audit trail ---

BLOCK = 2000  # events in a block: ten milliseconds of hashing
SHARE = 0.04  # of a worker's time
AT_ONCE = 0.25  # seconds, for a tick, which runs the task once


class Sealing:
    """Seals at least one block per run, then as many as its share of time allows. If sealing took more than its share,
    because the machine is busy or runs are close together, it pauses until the share is kept."""

    def __init__(self, every: float) -> None:
        self._share = SHARE * every or AT_ONCE
        self._rest_until = 0.0

    async def __call__(self, store: Store) -> int:
        """Returns 0, as it makes no job ready."""
        began = time.monotonic()
        if began < self._rest_until:
            return 0
        with _unless_pinned():
            while await store.arun(store.audit.seal(release(), BLOCK)) >= BLOCK:
                if time.monotonic() - began > self._share:
                    break
        self._rest_until = began + (time.monotonic() - began) / SHARE
        return 0


@cache
def installed_version() -> str | None:
    """The installed version of Holdfast; None if it runs from a source tree that is not installed."""
    try:
        return version("holdfast")
    except PackageNotFoundError:
        return None


def release() -> str:
    return installed_version() or "unknown"


# --- bulk operations ---

OPERATIONS_LIMIT = 0.4
"""Seconds per run, so that the other tasks of the same chain are not held up."""


async def run_operations(store: Store, *, tenant: str) -> int:
    """Run batches of bulk operations. Returns the number of jobs. Usually it is one query of an empty table."""
    total, until = 0, time.monotonic() + OPERATIONS_LIMIT
    while True:
        wait = await store.arun(store.operations.next(tenant))
        if wait is None or time.monotonic() + wait > until:
            return total
        if wait > 0:
            await asyncio.sleep(wait)
        # None: another worker runs it, or has just run the batch.
        done = await store.arun(store.operations.work(tenant))
        if done is None:
            return total
        total += done


# --- tasks ---

TASK_BATCH = 1000
# Pauses between two queries for due work, of the leading worker and of the others, as multiples of the pace of the
# quickest task. The leading worker queries earlier if it knows when the next work falls due.
LEADER_PACE, FOLLOWER_PACE = 2.0, 4.0
# A task is run after this many seconds even if the query reports no work for it.
FORCED_EVERY = 120.0


@dataclass(frozen=True, slots=True)
class MaintenanceTask:
    """Either ``flow`` or ``run`` does the work. ``count`` gives the number of rows from the result of ``flow``; a
    ``full`` batch is followed by another at once. ``run`` is for tasks that need several transactions, and returns the
    number. ``then`` runs afterwards on the same connection, because a worker has few of them."""

    name: str
    every: float
    flow: Callable[[Store], Flow[Any]] | None = None
    count: Callable[[Any], int] = int
    full: int = TASK_BATCH
    run: Callable[[Store], Awaitable[int]] | None = None
    then: MaintenanceTask | None = None
    tenant: str = EVERY_TENANT
    readies: bool = True
    """Whether it may make jobs ready to be claimed: a burst does not end before those have run."""

    def followed_by(self, last: MaintenanceTask) -> MaintenanceTask:
        """The task with ``last`` at the end of its chain."""
        return replace(self, then=last if self.then is None else self.then.followed_by(last))


def standard_tasks(
    tenant: str, *, promote_every: float, sweep_every: float, sealing: bool = True
) -> tuple[MaintenanceTask, ...]:
    def batches(
        name: str, every: float, operation: Callable[[Store], Callable[[int, str], Flow[Any]]], **options: Any
    ) -> MaintenanceTask:
        return MaintenanceTask(name, every, lambda store: operation(store)(TASK_BATCH, tenant), **options)

    callbacks = batches("callbacks", promote_every, lambda store: store.workflows.fire_callbacks)
    run_bulk = partial(run_operations, tenant=tenant)
    operations = MaintenanceTask("operations", promote_every, run=run_bulk, then=callbacks)
    subscriptions = MaintenanceTask("subscriptions", promote_every, run=partial(feed, tenant=tenant), then=operations)
    limits = batches("limits", promote_every, lambda store: store.limits.attend, then=subscriptions)
    aging = batches("aging", sweep_every, lambda store: store.queues.age)
    seal = MaintenanceTask("seal", sweep_every, run=Sealing(sweep_every)) if sealing else None
    retention = partial(sweep, tenant=tenant, slices=SLICES if sweep_every else 1)
    return (
        batches("promote", promote_every, lambda store: store.leases.promote, then=limits, tenant=tenant),
        batches("expire", sweep_every, lambda store: store.leases.expire, then=seal, tenant=tenant),
        batches("approvals", sweep_every, lambda store: store.approvals.attend, then=aging),
        batches("reap", sweep_every, lambda store: store.leases.reap, count=_recovered, tenant=tenant),
        # Not in a chain, because it is slow on purpose.
        MaintenanceTask("retention", sweep_every, run=retention, readies=False),
    )


def _recovered(sweep: Sweep) -> int:
    if sweep.leases or sweep.requeued or sweep.crashed:
        log.info(
            "Recovered jobs of lost workers (expired leases: %s): %s returned to the queue, %s counted as crashed",
            *(sweep.leases, sweep.requeued, sweep.crashed),
        )
    return sweep.requeued + sweep.crashed


async def run_once(task: MaintenanceTask, store: Store, failed: Callable[[], None] = lambda: None) -> int:
    """Do all the work there is, and return its amount. Errors are logged, not raised; ``failed`` is called then."""
    total = 0
    try:
        if task.run is not None:
            return await task.run(store)
        while task.flow is not None:
            done = task.count(await store.arun(task.flow(store)))
            total += done
            if done < task.full:
                break
        return total
    except StoreUnavailable as error:
        store.outage.failed(error)
        failed()
        return total
    except Exception as error:  # a task that fails is retried; it must not end the worker
        failed()
        log.warning("Maintenance task %s failed: %s", task.name, error)
        skips_rows = False
        with contextlib.suppress(Exception):
            skips_rows = await set_aside(store, error, task.tenant)
        return total + (await run_once(task, store) if skips_rows else 0)  # the other rows need not wait


# --- the scheduler ---


class _Chain:
    """A task and those that follow it, run one after another."""

    def __init__(self, first: MaintenanceTask) -> None:
        self.first = first
        self.tasks: list[MaintenanceTask] = []
        task: MaintenanceTask | None = first
        while task is not None:
            self.tasks.append(task)
            task = task.then
        self.names = frozenset(task.name for task in self.tasks)
        self.next_at = self.forced_at = 0.0
        self.run: asyncio.Task[None] | None = None

    def to_run(self, due: DueWork | None, now: float) -> frozenset[str]:
        """The names of the tasks to run now."""
        if now < self.next_at or (self.run is not None and not self.run.done()):
            return frozenset()
        if due is None or now >= self.forced_at:
            return self.names
        return (self.names & due.tasks) | (self.names - KNOWN)


class Maintenance:
    """Runs maintenance tasks when there is work for them. Calls ``did_work`` when a task has done something, and
    ``has_run`` with the name of each chain that has run.

    One statement reads which tasks have work. The worker that was started first runs it most often, the others less
    often: if the first dies, the others find the work a little later. Nothing else depends on the leading worker. On a
    store without that statement every task runs at its own pace.
    """

    def __init__(
        self,
        store: Store,
        tasks: Iterable[MaintenanceTask],
        tenant: str,
        *,
        lease: Callable[[], str] = str,
        did_work: Callable[[], None] = lambda: None,
        has_run: Callable[[str], None] = lambda name: None,
    ) -> None:
        self._store = store
        self._chains = [_Chain(task) for task in tasks]
        self._pace = min((chain.first.every for chain in self._chains), default=1.0)
        self._quick = frozenset().union(*(chain.names for chain in self._chains if chain.first.every <= self._pace))
        self._tenant = tenant
        self._lease, self._did_work, self._has_run = lease, did_work, has_run
        self.notifies = False
        """Whether this database notifies of new jobs, as far as is known."""

    async def run(self, leaving: asyncio.Event) -> None:
        """Run until ``leaving``. All tasks run once at first, one after another: in parallel they would each open a
        connection before a starting worker has claimed its first jobs. Promotion is last, because the other tasks make
        jobs due and a burst may end after this round."""
        maintaining.set(True)
        for chain in reversed(self._chains):
            if chain.first.readies:
                await self._run(chain, chain.names, leaving)
        for chain in self._chains:
            if not chain.first.readies:  # slow, and nothing waits for it
                self._start(chain, chain.names, leaving)
        pause = self._pace
        while not leaving.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(leaving.wait(), pause * random.uniform(0.9, 1.1))
            if not leaving.is_set():
                pause = await self._start_due(leaving)
        await asyncio.gather(*(chain.run for chain in self._chains if chain.run is not None))

    async def _start_due(self, leaving: asyncio.Event) -> float:
        """Start the tasks that have work. Returns the pause before the next call."""
        try:
            due = await self._store.due_work(self._lease(), self._tenant)
            if due is not None:  # None: a store without the statement, which was not queried
                self._store.outage.answered()
        except StoreUnavailable as error:
            self._store.outage.failed(error)
            return self._pace
        except Exception as error:
            log.warning("Maintenance could not find its work: %s", error)
            return self._pace
        now = time.monotonic()
        for chain in self._chains:
            if names := chain.to_run(due, now):
                self._start(chain, names, leaving)
        if due is None or due.tasks & self._quick:
            return self._pace
        self.notifies = due.notifies
        if not due.leads:
            return FOLLOWER_PACE * self._pace
        longest = LEADER_PACE * self._pace
        return longest if due.next_in is None else max(self._pace / 2, min(longest, due.next_in))

    def _start(self, chain: _Chain, names: frozenset[str], leaving: asyncio.Event) -> None:
        chain.run = asyncio.create_task(self._run(chain, names, leaving))

    async def _run(self, chain: _Chain, names: frozenset[str], leaving: asyncio.Event) -> None:
        if leaving.is_set():
            return
        failures: list[str] = []
        for task in chain.tasks:
            failed = partial(failures.append, task.name)
            if task.name in names and not leaving.is_set() and await run_once(task, self._store, failed):
                self._did_work()
        now, every = time.monotonic(), chain.first.every
        # The loop of ``run`` sets the pace of the quick chains.
        chain.next_at = now if every <= self._pace else now + every * random.uniform(0.8, 1.2)
        if failures:
            chain.forced_at = now  # retried next time, whether or not work is reported
        elif names == chain.names:
            chain.forced_at = now + max(FORCED_EVERY, every) * random.uniform(0.8, 1.2)
        self._has_run(chain.first.name)
