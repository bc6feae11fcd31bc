"""Maintenance: what every worker does besides running jobs. Each task is safe to run everywhere at once."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from holdfast.engine.job import EVERY_TENANT, Sweep
from holdfast.errors import StoreUnavailable
from holdfast.runtime.feeding import feed
from holdfast.runtime.operating import work_off
from holdfast.runtime.quarantine import set_aside
from holdfast.runtime.sealing import Sealing
from holdfast.runtime.sweeping import SLICES, sweep
from holdfast.stores.base import Store
from holdfast.stores.due import KNOWN, DueWork, maintaining
from holdfast.stores.flow import Flow

log = logging.getLogger("holdfast.worker")

BATCH = 1000
# How often the worker that leads asks what is due, and how often the others, as multiples of a task's shortest pace.
# When work is known to fall due earlier, the one that leads asks then.
LEADS, FOLLOWS = 2.0, 4.0
# A task is run after so many seconds, though nothing said that there is work for it.
UNASKED = 120.0


@dataclass(frozen=True, slots=True)
class Duty:
    """``flow`` answers how much there was; a ``full`` batch is followed by another at once. Where one transaction will
    not do, ``run`` does all there is, and answers how much it was. ``then`` is done after it, on the same connection:
    of those a worker has few."""

    name: str
    every: float
    flow: Callable[[Store], Flow[Any]] | None = None
    count: Callable[[Any], int] = int
    full: int = BATCH
    run: Callable[[Store], Awaitable[int]] | None = None
    then: Duty | None = None
    tenant: str = EVERY_TENANT
    readies: bool = True
    """Whether it may make jobs ready to be taken: a burst waits for those that do to have looked."""

    def followed_by(self, last: Duty) -> Duty:
        return replace(self, then=last if self.then is None else self.then.followed_by(last))


def standard_duties(tenant: str, *, promote_every: float, sweep_every: float, sealing: bool = True) -> tuple[Duty, ...]:
    bulk = Duty("operations", promote_every, run=partial(work_off, tenant=tenant))
    following = Duty("subscriptions", promote_every, run=partial(feed, tenant=tenant), then=bulk)
    limits = Duty("limits", promote_every, lambda store: store.verbs.attend_limits(BATCH, tenant), then=following)
    aging = Duty("aging", sweep_every, lambda store: store.verbs.age_queues(BATCH, tenant))
    due = Duty("promote", promote_every, lambda store: store.verbs.promote_due(BATCH, tenant), tenant=tenant)
    last = Duty("seal", sweep_every, run=Sealing(sweep_every)) if sealing else None
    return (
        replace(due, then=limits),
        Duty("expire", sweep_every, lambda store: store.verbs.expire_overdue(BATCH, tenant), then=last, tenant=tenant),
        Duty("gates", sweep_every, lambda store: store.verbs.attend_gates(BATCH, tenant), then=aging),
        Duty("reap", sweep_every, lambda store: store.verbs.reap_lapsed(BATCH, tenant), _freed, tenant=tenant),
        # By itself: it goes slowly, so that others may work beside it.
        Duty(
            "retention",
            sweep_every,
            run=partial(sweep, tenant=tenant, slices=SLICES if sweep_every else 1),
            readies=False,
        ),
    )


async def run_once(duty: Duty, store: Store, failed: Callable[[], None] = lambda: None) -> int:
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
        log.warning("duty %s failed: %s", duty.name, error)
        found = False
        with contextlib.suppress(Exception):
            found = await set_aside(store, error, duty.tenant)
        return total + (await run_once(duty, store) if found else 0)  # the others need not wait for the next time


class _Chain:
    """A duty and those that follow it, run one after another."""

    def __init__(self, first: Duty) -> None:
        self.first = first
        self.duties: list[Duty] = []
        each: Duty | None = first
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
        duties: Iterable[Duty],
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
        its tasks would open a connection each before that."""
        maintaining.set(True)
        for chain in self._chains:
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
            log.warning("maintenance failed to find its work: %s", error)
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
            "reaped %s lapsed leases: %s jobs back in the queue, %s taken as crashed",
            sweep.leases,
            sweep.requeued,
            sweep.crashed,
        )
    return sweep.requeued + sweep.crashed
