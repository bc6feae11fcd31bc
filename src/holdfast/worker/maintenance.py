"""The maintenance tasks of every worker: promote, expire, recover, seal, subscriptions, bulk operations, and retention
(``worker/retention.py``).

Every task works in short transactions and claims the rows it works on. So any number of workers may run the same task,
and a worker may die at any point.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, replace
from functools import cache, partial
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from holdfast.engine.job import EVERY_TENANT, Sweep
from holdfast.engine.settlement import storable
from holdfast.errors import Refused, StoreUnavailable
from holdfast.stores.flow import Flow, maintaining
from holdfast.stores.requests import KNOWN_TASKS, DueWork
from holdfast.worker.recovery import quarantine
from holdfast.worker.retention import SLICES, sweep, unless_pinned

if TYPE_CHECKING:
    from holdfast.features.assembly import Store

log = logging.getLogger("holdfast.worker")

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
        with unless_pinned():
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
# The pause in seconds of a worker that is told of new work. The query finds jobs whose notification was lost, too.
SAFETY_POLL = 5.0
# A worker that was told of new work twice within this time queries at those paces for as long, without being told.
RESTLESS = 10.0
# A worker that was given a quicker pace than this keeps it.
SHORTEST_REST = 0.5
UPKEEP = "  upkeep"
"""The notification about new work (``announce_upkeep`` in ``notify.sql``)."""
# A task is run after this many seconds even if the query reports no work for it, by a worker that does not lead later.
FORCED_EVERY, FOLLOWER_FORCED = 300.0, 3000.0


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
    overdue: Callable[[], bool] | None = None
    """Whether it has to run although no work is reported for it."""
    readies: bool = True
    """Whether it may make jobs ready to be claimed: a burst does not end before those have run."""

    def followed_by(self, last: MaintenanceTask) -> MaintenanceTask:
        """The task with ``last`` at the end of its chain."""
        return replace(self, then=last if self.then is None else self.then.followed_by(last))


def promotion(tenant: str, every: float = 0.0, then: MaintenanceTask | None = None) -> MaintenanceTask:
    return MaintenanceTask(
        "promote", every, lambda store: store.leases.promote(TASK_BATCH, tenant), then=then, tenant=tenant
    )


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
    held = batches("held", sweep_every, lambda store: store.versions.offer)
    aging = batches("aging", sweep_every, lambda store: store.queues.age)
    seal = MaintenanceTask("seal", sweep_every, run=Sealing(sweep_every)) if sealing else None
    retention = partial(sweep, tenant=tenant, slices=SLICES if sweep_every else 1)
    return (
        promotion(tenant, promote_every, limits),
        batches("expire", sweep_every, lambda store: store.leases.expire, then=seal, tenant=tenant),
        batches("approvals", sweep_every, lambda store: store.approvals.attend, then=aging),
        batches("recover", sweep_every, lambda store: store.leases.recover, count=_recovered, then=held, tenant=tenant),
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
            skips_rows = await quarantine(store, error, task.tenant)
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
        if due is None or now >= self.forced_at + (0 if due.leads else FOLLOWER_FORCED - FORCED_EVERY):
            return self.names
        overdue = {task.name for task in self.tasks if task.overdue is not None and task.overdue()}
        return (self.names & due.tasks) | (self.names - KNOWN_TASKS) | overdue


class Maintenance:
    """Runs maintenance tasks when there is work for them. Calls ``did_work`` when a task has done something, and
    ``has_run`` with the name of each chain that has run.

    One statement reads which tasks have work. The worker that was started first runs it most often, the others less
    often: if the first dies, the others find the work a little later. Nothing else depends on the leading worker. On a
    store without that statement every task runs at its own pace.

    While nothing is due, a worker that can be ``told`` of new work runs it every five seconds only.
    """

    def __init__(
        self,
        store: Store,
        tasks: Iterable[MaintenanceTask],
        tenant: str,
        did_work: Callable[[], None] = lambda: None,
        has_run: Callable[[str], None] = lambda name: None,
        *,
        query: Callable[[], Awaitable[DueWork | None]] | None = None,
        found_jobs: Callable[[], None] | None = None,
    ) -> None:
        """``query`` reads the due work. ``found_jobs`` is called when jobs wait that were not announced, by a worker
        that is ``told`` of new work."""
        self._store = store
        self._chains = [_Chain(task) for task in tasks]
        self._pace = min((chain.first.every for chain in self._chains), default=1.0)
        quick = (chain.names for chain in self._chains if chain.first.every <= self._pace)
        self._quick = frozenset().union(*quick) - {"rules"}
        self._query = query or partial(store.due_work, None, tenant)
        self._did_work, self._has_run, self._found_jobs = did_work, has_run, found_jobs
        known = all(chain.names <= KNOWN_TASKS or chain.first.every >= SAFETY_POLL for chain in self._chains)
        self._may_rest = found_jobs is not None and known and self._pace >= SHORTEST_REST
        self.notifies = False
        """Whether this database notifies of new jobs, as far as is known."""
        self.awaits = False
        """Whether it has to be told of new work."""
        self._told = asyncio.Event()
        self._told_at = self._restless_until = float("-inf")

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
        pause, left = self._pace, asyncio.create_task(leaving.wait())
        try:
            while not leaving.is_set():
                await self._rest(pause * random.uniform(0.9, 1.1), left)
                if not leaving.is_set():
                    pause = await self._start_due(leaving)
        finally:
            left.cancel()
        await asyncio.gather(*(chain.run for chain in self._chains if chain.run is not None))

    def told(self) -> None:
        """There may be new work. Any login can send notifications, so a worker that queries often anyway ignores it."""
        if self.awaits:
            self._told.set()

    async def _rest(self, pause: float, left: asyncio.Task[Any]) -> None:
        told = asyncio.create_task(self._told.wait())
        try:
            await asyncio.wait({told, left}, timeout=pause, return_when=asyncio.FIRST_COMPLETED)
        finally:
            told.cancel()
        if self._told.is_set():
            self._told.clear()
            now = time.monotonic()
            if now - self._told_at < RESTLESS:
                self._restless_until = now + RESTLESS
            self._told_at = now

    async def _start_due(self, leaving: asyncio.Event) -> float:
        """Start the tasks that have work. Returns the pause before the next call."""
        try:
            due = await self._query()
            if due is not None:  # None: a store without the statement, which was not queried
                self._store.outage.answered()
        except StoreUnavailable as error:
            self._store.outage.failed(error)
            return self._pace
        except Exception as error:
            log.warning("Maintenance could not find its work: %s", error)
            self._await(False)
            return self._pace
        now = time.monotonic()
        for chain in self._chains:
            if names := chain.to_run(due, now):
                self._start(chain, names, leaving)
        if due is None or due.tasks & self._quick:
            self._await(False)
            return self._pace
        self.notifies = due.notifies
        if self.awaits and "claim" in due.tasks and self._found_jobs is not None:
            self._found_jobs()
        can_be_told = self._may_rest and self._store.listening and due.notifies
        self._await(can_be_told and now >= self._restless_until)
        longest = (LEADER_PACE if due.leads else FOLLOWER_PACE) * self._pace
        shortest = self._pace / 2 if due.leads else longest
        waiting = [chain.next_at - now for chain in self._chains if chain.names & due.tasks and chain.next_at > now]
        if due.next_in is not None:
            waiting.append(due.next_in)
        return max(shortest, min([max(longest, SAFETY_POLL) if self.awaits else longest, *waiting]))

    def _await(self, awaits: bool) -> None:
        if awaits != self.awaits:
            self.awaits = awaits
            self._store.refresh_listening()

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
