"""Maintenance that every worker does: promote, expire, reap, seal, sweep, feed subscriptions, work off operations.

The duty of retention: count what was used, then clean and purge what is due, a slice at a time.

Each slice is one short transaction, so a worker may die between any two. Between them it rests nineteen times as long
as the last one took: however much there is to remove, it has a twentieth of one connection, and the jobs have the
rest. So has the counting: behind a very busy hour it comes later, and what is not counted yet is not purged yet.

The duty of deleting what jobs no longer have: payloads, results, artifacts, steps, checkpoints and logs in the artifact
store, and the directories of command jobs on this host.

What is to go was written down in the transaction that cleaned the job or saved its checkpoint anew. It is deleted first
and forgotten then: whoever dies in between leaves it to the next, and deleting what is not there does no harm.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from holdfast.engine.job import EVERY_TENANT, Sweep
from holdfast.engine.operation import Program
from holdfast.engine.settlement import storable
from holdfast.errors import InvalidInput, Refused, StoreUnavailable
from holdfast.features.attempts.model import FILE
from holdfast.features.retention.model import Leftover
from holdfast.stores.artifacts import Artifacts, Reference
from holdfast.stores.due import KNOWN, DueWork, maintaining
from holdfast.stores.flow import Flow, in_thread, run
from holdfast.stores.host_files import host_name, remove_directory
from holdfast.stores.namespace import call
from holdfast.worker.refusals import set_aside

if TYPE_CHECKING:
    from holdfast.features.assembly import Store

log = logging.getLogger("holdfast.worker")

SLICES, PAGES = 20, 50
"""Of one run; the next comes with the next sweep."""
WANT, LOOK, PAGE = 200, 2000, 2000
REST = 19.0
LONGEST_REST = 2.0


async def sweep(store: Store, *, tenant: str, slices: int = SLICES) -> int:
    """Nothing of it is a reason to look for jobs, so it answers 0. Mostly these are two looks at two small tables."""
    pages = PAGES if slices > 1 else 1
    with _left_to_others():
        await _count(store, pages)
    for left in range(slices, 0, -1):
        began = time.monotonic()
        swept = await store.arun(store.retention.sweep(WANT, LOOK, tenant))
        if swept.held_by is not None and swept.held_by.startswith(("consumer", "subscription")):
            log.warning("%s jobs are past their retention, but %s has not read their events", swept.held, swept.held_by)
        if swept.action == "idle" or left == 1:
            break
        if swept.looked:
            await asyncio.sleep(min(LONGEST_REST, REST * (time.monotonic() - began)))
    return 0


@contextlib.contextmanager
def _left_to_others() -> Iterator[None]:
    """What is done for all tenants at once is left to workers whose login is not pinned to one."""
    try:
        yield
    except Refused as error:
        if error.code != "tenant_pinned":
            raise


async def _count(store: Store, pages: int) -> None:
    for left in range(pages, 0, -1):
        began = time.monotonic()
        if await store.arun(store.usage.count(PAGE)) < PAGE or left == 1:
            return
        await asyncio.sleep(min(LONGEST_REST, REST * (time.monotonic() - began)))


FEED_PAGE = 500
"""Events read in one transaction. Locks are kept, and the write lock where there is one, for a few ms."""
FEED_PAGES = 20
"""How many pages of one subscription are read before the next has its turn."""


async def feed(store: Store, *, tenant: str) -> int:
    """Answers how many jobs were made. Mostly there is no subscription, and this is one look at an empty table."""
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
            # Somebody paused or changed it meanwhile, or its jobs are not accepted now: it stays where it is. Or its
            # key said no, which is to be seen.
            if error.code not in ("subscription_changed", "paused"):
                await _say(store, scope, name, id, error)
        except Exception as error:  # one that fails is tried again, and the others have their turn
            await _say(store, scope, name, id, error)
    return made


async def _say(store: Store, scope: str, name: str, id: str, error: Exception) -> None:
    log.warning("Subscription %s failed: %s", name, error)
    await store.arun(store.subscriptions.failed(id, storable(str(error)) or type(error).__name__, scope))


BATCH, BATCHES = 100, 20


async def clear(store: Store, *, artifacts: Artifacts | None, tenant: str, batches: int = BATCHES) -> int:
    """Nothing of it is a reason to look for jobs, so it answers 0. Mostly it is a look at a small table."""
    for _ in range(batches):
        found = await store.arun(store.retention.orphans(BATCH, tenant, host_name(), artifacts is not None))
        if not found:
            break
        gone = await in_thread(_delete, artifacts, found)
        await store.arun(store.retention.forget_orphans(gone, tenant))
    return 0


def clearing(store: Store, artifacts: Artifacts | None, tenant: str) -> Program[int]:
    """Delete all files that are listed for deletion and can be reached here, now. Returns their number."""
    count, stored = 0, artifacts is not None
    while found := (yield from run(store.retention.orphans(BATCH, tenant, host_name(), stored))):
        gone = yield from call(partial(_delete, artifacts, found))
        count += yield from run(store.retention.forget_orphans(gone, tenant))
    return count


def _delete(artifacts: Artifacts | None, found: Sequence[Leftover]) -> list[str]:
    """What was there. What was not may lie in a store or on a host that another program knows: it is left to that, and
    forgotten by the bookkeeping if nobody has it."""
    return [each.ref for each in found if _deleted(artifacts, each)]


def _deleted(artifacts: Artifacts | None, each: Leftover) -> bool:
    if each.ref.startswith(FILE):
        try:
            return remove_directory(each.ref, each.job_id)
        except Refused:  # a row that was written by hand
            return False
    if artifacts is None or not _is_own(each) or not artifacts.exists(each.ref, tenant=each.tenant):
        return False
    artifacts.delete(each.ref, tenant=each.tenant)
    return True


def _is_own(each: Leftover) -> bool:
    """A worker that writes SQL may have noted any text: it must not keep the others from being deleted."""
    try:
        return Reference.of(each.ref).tenant == each.tenant
    except InvalidInput:
        return False


BLOCK = 2000  # events in a block: ten milliseconds of hashing
SHARE = 0.04  # of a worker's time; what is left over waits
AT_ONCE = 0.25  # seconds, for whoever looks once and goes


class Sealing:
    """What a worker does between two looks: a block at least, then as many as its share allows. If that took
    longer, because the machine is busy or looks are close together, it rests for as long as makes good for it."""

    def __init__(self, every: float) -> None:
        self._share = SHARE * every or AT_ONCE
        self._rest_until = 0.0

    async def __call__(self, store: Store) -> int:
        """It is nothing that a worker would wake up for, hence no count."""
        began = time.monotonic()
        if began < self._rest_until:
            return 0
        with _left_to_others():
            while await store.arun(store.audit.seal(release(), BLOCK)) >= BLOCK:
                if time.monotonic() - began > self._share:
                    break
        self._rest_until = began + (time.monotonic() - began) / SHARE
        return 0


@lru_cache
def release() -> str:
    try:
        return version("holdfast")
    except PackageNotFoundError:  # run from its source
        return "unknown"


SPELL = 0.4
"""For how many seconds at a time; the other duties on this connection have their turn in between."""


async def work_off(store: Store, *, tenant: str) -> int:
    """Answers how many jobs it was. Mostly there is no operation, and this is one look at an empty table."""
    total, until = 0, time.monotonic() + SPELL
    while True:
        wait = await store.arun(store.operations.next(tenant))
        if wait is None or time.monotonic() + wait > until:
            return total
        if wait > 0:
            await asyncio.sleep(wait)
        # None: somebody else has it, or has just done the batch.
        done = await store.arun(store.operations.work(tenant))
        if done is None:
            return total
        total += done


TASK_BATCH = 1000
# How often the worker that leads asks what is due, and how often the others, as multiples of a task's shortest pace.
# When work is known to fall due earlier, the one that leads asks then.
LEADS, FOLLOWS = 2.0, 4.0
# A task is run after so many seconds, though nothing said that there is work for it.
UNASKED = 120.0


@dataclass(frozen=True, slots=True)
class MaintenanceTask:
    """``flow`` answers how much there was; a ``full`` batch is followed by another at once. Where one transaction will
    not do, ``run`` does all there is, and answers how much it was. ``then`` is done after it, on the same connection:
    of those a worker has few."""

    name: str
    every: float
    flow: Callable[[Store], Flow[Any]] | None = None
    count: Callable[[Any], int] = int
    full: int = TASK_BATCH
    run: Callable[[Store], Awaitable[int]] | None = None
    then: MaintenanceTask | None = None
    tenant: str = EVERY_TENANT
    readies: bool = True
    """Whether it may make jobs ready to be taken: a burst waits for those that do to have looked."""

    def followed_by(self, last: MaintenanceTask) -> MaintenanceTask:
        return replace(self, then=last if self.then is None else self.then.followed_by(last))


def standard_tasks(
    tenant: str, *, promote_every: float, sweep_every: float, sealing: bool = True
) -> tuple[MaintenanceTask, ...]:
    callbacks = MaintenanceTask(
        "callbacks", promote_every, lambda store: store.workflows.fire_callbacks(TASK_BATCH, tenant)
    )
    bulk = MaintenanceTask("operations", promote_every, run=partial(work_off, tenant=tenant), then=callbacks)
    following = MaintenanceTask("subscriptions", promote_every, run=partial(feed, tenant=tenant), then=bulk)
    limits = MaintenanceTask(
        "limits", promote_every, lambda store: store.limits.attend(TASK_BATCH, tenant), then=following
    )
    aging = MaintenanceTask("aging", sweep_every, lambda store: store.queues.age(TASK_BATCH, tenant))
    due = MaintenanceTask(
        "promote", promote_every, lambda store: store.leases.promote(TASK_BATCH, tenant), tenant=tenant
    )
    last = MaintenanceTask("seal", sweep_every, run=Sealing(sweep_every)) if sealing else None
    return (
        replace(due, then=limits),
        MaintenanceTask(
            "expire",
            sweep_every,
            lambda store: store.leases.expire(TASK_BATCH, tenant),
            then=last,
            tenant=tenant,
        ),
        MaintenanceTask("approvals", sweep_every, lambda store: store.approvals.attend(TASK_BATCH, tenant), then=aging),
        MaintenanceTask(
            "reap", sweep_every, lambda store: store.leases.reap(TASK_BATCH, tenant), _freed, tenant=tenant
        ),
        # By itself: it goes slowly, so that others may work beside it.
        MaintenanceTask(
            "retention",
            sweep_every,
            run=partial(sweep, tenant=tenant, slices=SLICES if sweep_every else 1),
            readies=False,
        ),
    )


async def run_once(duty: MaintenanceTask, store: Store, failed: Callable[[], None] = lambda: None) -> int:
    """Do what there is to do; answers how much. A database that is unreachable is a reason to retry later, not to fail:
    ``failed`` is called then."""
    total = 0
    try:
        if duty.run is not None:
            return await duty.run(store)
        while duty.flow is not None:
            done = duty.count(await store.arun(duty.flow(store)))
            total += done
            if done < duty.full:
                break
        return total
    except StoreUnavailable as error:
        store.outage.failed(error)
        failed()
        return total
    except Exception as error:  # a task that fails is retried; it must not end the worker
        failed()
        log.warning("Maintenance task %s failed: %s", duty.name, error)
        found = False
        with contextlib.suppress(Exception):
            found = await set_aside(store, error, duty.tenant)
        return total + (await run_once(duty, store) if found else 0)  # the others need not wait for the next time


class _Chain:
    """A duty and those that follow it, run one after another."""

    def __init__(self, first: MaintenanceTask) -> None:
        self.first = first
        self.duties: list[MaintenanceTask] = []
        each: MaintenanceTask | None = first
        while each is not None:
            self.duties.append(each)
            each = each.then
        self.names = frozenset(duty.name for duty in self.duties)
        self.next_at = self.unasked_at = 0.0
        self.task: asyncio.Task[None] | None = None

    def wanted(self, due: DueWork | None, now: float) -> frozenset[str]:
        """The names of those to be run now."""
        if now < self.next_at or (self.task is not None and not self.task.done()):
            return frozenset()
        if due is None or now >= self.unasked_at:
            return self.names
        return (self.names & due.tasks) | (self.names - KNOWN)


class Maintenance:
    """Runs maintenance tasks when there is work for them. Calls ``call`` when one has done something, and ``looked``
    when one has been run.

    One statement asks which have work. Of several workers the one that was started first asks most often, the others
    less: if it dies they find its work all the same, a little later. Nothing else depends on it, as each task claims
    what it works on. A store that cannot tell has every task run at its own pace.
    """

    def __init__(
        self,
        store: Store,
        duties: Iterable[MaintenanceTask],
        tenant: str,
        *,
        lease: Callable[[], str] = str,
        call: Callable[[], None] = lambda: None,
        looked: Callable[[str], None] = lambda name: None,
    ) -> None:
        self._store = store
        self._chains = [_Chain(duty) for duty in duties]
        self._pace = min((chain.first.every for chain in self._chains), default=1.0)
        self._quick = frozenset().union(*(each.names for each in self._chains if each.first.every <= self._pace))
        self._tenant = tenant
        self._lease, self._call, self._looked = lease, call, looked
        self.notifies = False
        """Whether new jobs are announced in this database, as far as is known."""

    async def run(self, leaving: asyncio.Event) -> None:
        """Until ``leaving``. All tasks are run at first, one after another: a worker that starts has jobs to take, and
        its tasks would open a connection each before that. Promotion comes last, since the others make jobs due: a
        burst may end after this one round."""
        maintaining.set(True)
        for chain in reversed(self._chains):
            if chain.first.readies:
                await self._run(chain, chain.names, leaving)
        for chain in self._chains:
            if not chain.first.readies:  # it goes slowly, and nobody waits for it
                self._start(chain, chain.names, leaving)
        pause = self._pace
        while not leaving.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(leaving.wait(), pause * random.uniform(0.9, 1.1))
            if not leaving.is_set():
                pause = await self._look(leaving)
        await asyncio.gather(*(chain.task for chain in self._chains if chain.task is not None))

    async def _look(self, leaving: asyncio.Event) -> float:
        """Start what has work; answers when to look again."""
        try:
            due = await self._store.due_work(self._lease(), self._tenant)
            if due is not None:  # a store that cannot tell was not asked
                self._store.outage.answered()
        except StoreUnavailable as error:
            self._store.outage.failed(error)
            return self._pace
        except Exception as error:
            log.warning("Maintenance could not find its work: %s", error)
            return self._pace
        now = time.monotonic()
        for chain in self._chains:
            if wanted := chain.wanted(due, now):
                self._start(chain, wanted, leaving)
        if due is None or due.tasks & self._quick:
            return self._pace
        self.notifies = due.notifies
        if not due.leads:
            return FOLLOWS * self._pace
        longest = LEADS * self._pace
        return longest if due.next_in is None else max(self._pace / 2, min(longest, due.next_in))

    def _start(self, chain: _Chain, names: frozenset[str], leaving: asyncio.Event) -> None:
        chain.task = asyncio.create_task(self._run(chain, names, leaving))

    async def _run(self, chain: _Chain, names: frozenset[str], leaving: asyncio.Event) -> None:
        if leaving.is_set():
            return
        failures: list[str] = []
        for duty in chain.duties:
            failed = partial(failures.append, duty.name)
            if duty.name in names and not leaving.is_set() and await run_once(duty, self._store, failed):
                self._call()
        now, every = time.monotonic(), chain.first.every
        # The quick ones are paced by the loop itself.
        chain.next_at = now if every <= self._pace else now + every * random.uniform(0.8, 1.2)
        if failures:
            chain.unasked_at = now  # retried at the next look, whether or not it is known to have work
        elif names == chain.names:
            chain.unasked_at = now + max(UNASKED, every) * random.uniform(0.8, 1.2)
        self._looked(chain.first.name)


def _freed(sweep: Sweep) -> int:
    if sweep.leases or sweep.requeued or sweep.crashed:
        log.info(
            "Recovered %s expired leases: %s jobs back in the queue, %s counted as crashed",
            sweep.leases,
            sweep.requeued,
            sweep.crashed,
        )
    return sweep.requeued + sweep.crashed
