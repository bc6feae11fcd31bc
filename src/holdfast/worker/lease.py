"""Heartbeat thread, lease keeper, holdings comparison, cancellation checks, stall reports.

Keeps a worker under a lease: opens one, replaces one that was lost, ends it when the worker leaves.

What is done with the jobs of a lost lease is the worker's business; here is only what the store is asked for.

A worker's lease and the thread that keeps it alive.

The heartbeat is a thread of its own, so that a handler that blocks the event loop does not cost the worker
its jobs; a process that is gone stops beating. One renewal serves every job of the process.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
import socket
import sys
import threading
import time
import uuid
from collections.abc import Callable, Container, Iterable
from contextvars import copy_context
from dataclasses import replace
from functools import cache, partial
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

from holdfast.engine.job import StopMode, holder_of_ours
from holdfast.errors import HoldfastError, StoreError, StoreUnavailable
from holdfast.stores.flow import in_thread, patience_of
from holdfast.telemetry.tracebacks import place_of
from holdfast.worker.executor import ended_by_itself
from holdfast.worker.options import WorkerOptions
from holdfast.worker.slots import Slots
from holdfast.worker.startup import pauses

if TYPE_CHECKING:
    from holdfast.features.assembly import Store

log = logging.getLogger("holdfast.worker")


@cache
def release() -> str | None:
    """The installed version of Holdfast, for the list of workers."""
    try:
        return version("holdfast")
    except PackageNotFoundError:  # run from a source tree that is not installed
        return None


class LoopWatch:
    """Made on the loop's own thread; looks in the thread of the heartbeat, once a beat. What was asked at one beat
    should have been answered long before the next."""

    def __init__(self, patience: float) -> None:
        """After a pause of the whole process the loop may need a moment: ``patience``."""
        self._patience = patience
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._asked = time.monotonic()
        self._answered = threading.Event()
        self._answered.set()

    def look(self) -> None:
        if not self._answered.wait(self._patience):
            place = place_of(sys._current_frames().get(self._thread))
            log.warning(
                "The event loop was blocked for %.1f s, and with it every job of this worker%s",
                time.monotonic() - self._asked,
                "" if place is None else f": it is blocked at {place}",
            )
            return
        self._answered.clear()
        self._asked = time.monotonic()
        with contextlib.suppress(RuntimeError):  # it is closed: nothing runs any more
            self._loop.call_soon_threadsafe(self._answered.set)


BEATS_PER_LEASE = 3


class Heartbeat:
    """Renews until stopped; calls ``lost`` once when the store says that the lease has ended."""

    def __init__(
        self,
        store: Store,
        lease: str,
        ttl: float,
        tenant: str,
        lost: Callable[[], None],
        requested: Callable[[StopMode], None] = lambda mode: None,
    ) -> None:
        """To be made on the loop that the lease is for. ``requested`` is called, in the heartbeat's thread, when an
        operator asks the worker to end."""
        self._store = store
        self._lease = lease
        self._ttl = ttl
        self._tenant = tenant
        self._lost = lost
        self._requested = requested
        self._stop = threading.Event()
        self._watch = LoopWatch(min(1.0, ttl / BEATS_PER_LEASE / 4))
        beat = partial(copy_context().run, self._beat)
        self._thread = threading.Thread(target=beat, name="holdfast-heartbeat", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def end(self) -> None:
        """No other beat begins."""
        self._stop.set()

    def stop(self) -> None:
        """A beat that waits for an answer is not waited for: nothing depends on it any more."""
        self.end()
        self._thread.join(timeout=min(self._ttl, patience_of.get().left()))

    def _beat(self) -> None:
        pause = self._ttl / BEATS_PER_LEASE
        while not self._stop.wait(pause):
            started = time.monotonic()
            self._watch.look()
            try:
                renewal = self._store.leases.renew(self._lease, self._ttl, self._tenant)
                # An answer that comes after the lease has run out is of no use.
                kept = self._store.run(replace(renewal, patience=self._ttl))
            except Exception as error:
                # Not knowing is not losing: the lease may outlive the outage. The next beat comes sooner.
                if isinstance(error, StoreUnavailable):
                    self._store.outage.failed(error)
                else:
                    log.warning("Heartbeat failed: %s", error)
                pause = self._ttl / BEATS_PER_LEASE / 4
                continue
            if self._stop.is_set():
                return
            if not kept:
                self._lost()
                return
            if kept in ("drain", "stop"):
                self._requested(kept)
            pause = max(0.0, self._ttl / BEATS_PER_LEASE - (time.monotonic() - started))


class LeaseKeeper:
    """``lease`` is the id of the present one, and empty while there is none; ``lost`` says that it has ended."""

    def __init__(
        self,
        store: Store,
        options: WorkerOptions,
        kinds: Iterable[str],
        call: Callable[[], None],
        requested: Callable[[StopMode], None] = lambda mode: None,
    ) -> None:
        """``call`` wakes the worker, which checks whether the lease was lost. ``requested`` is called on the loop when
        an operator asks the worker to end; it may be called again with every heartbeat."""
        # A new name each time it starts: a restarted process must never be taken for its predecessor.
        self.name = holder_of_ours(uuid.uuid4(), socket.gethostname(), os.getpid())
        self.lease = ""
        self.lost = False
        self._store = store
        self._options = options
        self._kinds = tuple(kinds)
        self._call = call
        self._requested = requested
        self._heartbeat: Heartbeat | None = None

    async def open_first(self) -> None:
        """A database that cannot be reached is waited for until the worker is stopped, but not by a burst."""
        for pause in pauses(endless=not self._options.burst):
            try:
                return await self._open()
            except StoreUnavailable as error:
                self._store.outage.failed(error)
                await asyncio.sleep(pause)
            except StoreError as error:
                log.warning("No lease could be opened, retrying: %s", error)
                await asyncio.sleep(pause)
        await self._open()

    async def _open(self) -> None:
        ttl, tenant = self._options.lease_ttl, self._options.tenant
        options = self._options
        opening = self._store.leases.open(
            self.name, ttl, tenant, options.executor, self._kinds, options.queues, options.concurrency, release()
        )
        # Over a connection of the turns, which come next: it is one fewer to be opened.
        lease = await self._store.arun(replace(opening, hot=True))
        self.lease = lease.id
        loop = asyncio.get_running_loop()

        def lost() -> None:
            loop.call_soon_threadsafe(self._lose, lease.id)

        def requested(mode: StopMode) -> None:
            loop.call_soon_threadsafe(self._requested, mode)

        self._heartbeat = Heartbeat(self._store, lease.id, ttl, tenant, lost, requested)
        self._heartbeat.start()

    def _lose(self, lease: str) -> None:
        if lease == self.lease:
            self.lost = True
            self._call()

    async def revive(self) -> bool:
        """The lease ran out, and nobody may have noticed yet: then it can be renewed, and nothing is lost."""
        lease = self.lease
        renewal = self._store.leases.renew(lease, self._options.lease_ttl, self._options.tenant)
        try:
            if await self._store.arun(renewal):
                return True
            self._lose(lease)
        except StoreUnavailable as error:
            self._store.outage.failed(error)
        except Exception as error:
            log.warning("The lease could not be renewed: %s", error)
        return False

    async def replace(self, stopping: Callable[[], bool]) -> None:
        """Begin anew after a loss; without a lease if the worker is asked to stop first."""
        self.lease = ""
        await self._stop_heartbeat()
        self.lost = False
        while not stopping():
            try:
                return await self._open()
            except Exception as error:  # whatever it is, a worker without a lease has nothing else to do
                if isinstance(error, StoreUnavailable):
                    self._store.outage.failed(error)
                else:
                    log.warning("No new lease could be opened, retrying: %s", error)
                await asyncio.sleep(random.uniform(0.2, 1.0))

    async def leave(self) -> None:
        await self._stop_heartbeat()
        try:
            if self.lease:
                await self._store.arun(self._store.leases.end(self.lease, "closed", self._options.tenant))
        except HoldfastError as error:
            log.warning("The lease could not be closed and will expire: %s", error)

    def fall_silent(self) -> None:
        """Whatever could not be done before: a lease that is not ended lapses, unless somebody keeps it."""
        if self._heartbeat is not None:
            self._heartbeat.end()

    async def _stop_heartbeat(self) -> None:
        if self._heartbeat is not None:
            await in_thread(self._heartbeat.stop)


async def held_under(store: Store, lease: str, tenant: str) -> dict[str, int]:
    """The jobs under a lease, each with its attempt."""
    # Over a connection of the exchanges: after a loss the next exchange needs one, too.
    asked = replace(store.leases.holdings(lease, tenant), hot=True)
    return {holding.id: holding.attempt for holding in await store.arun(asked)}


async def taken_away(store: Store, running: Iterable[str], held: Container[str], tenant: str) -> set[str]:
    """What runs and is no longer held, because somebody cancelled it. A handler that has committed its own
    transaction holds nothing either, and goes on."""
    missing = [job_id for job_id in running if job_id not in held]
    return {job_id for job_id in missing if not await ended_by_itself(store, job_id, tenant)}


async def compare(store: Store, slots: Slots, lease: str, tenant: str) -> None:
    """After an error nobody knows what became of the last turn. Whatever the store thinks we hold and we know
    nothing of is handed back: it was taken, but never begun. What it no longer holds for us is dropped.

    To be called while no turn is under way.
    """
    begun = set(slots.running)  # some of it may end while the store is asked
    held = await held_under(store, lease, tenant)
    slots.forget(await taken_away(store, begun, held, tenant), "cancelled")
    slots.ended = [item for item in slots.ended if held.get(item.id) == item.attempt]
    known = begun | {item.id for item in slots.ended} | slots.unmovable
    slots.decline((job_id, attempt) for job_id, attempt in held.items() if job_id not in known)


# A hint may come with every commit of a busy database; whether jobs were taken away is asked no more often than this.
LEAST_PAUSE = 0.1


class CancellationCheck:
    def __init__(
        self, store: Store, slots: Slots, keeper: LeaseKeeper, options: WorkerOptions, freed: Callable[[], None]
    ) -> None:
        """``freed`` is called when there is room again."""
        self._store = store
        self._slots = slots
        self._keeper = keeper
        self._tenant = options.tenant
        self._every = options.recall_every
        self._freed = freed
        self._hinted = asyncio.Event()

    def hint(self) -> None:
        """Ask soon, instead of when it is time."""
        self._hinted.set()

    async def attend(self, leaving: asyncio.Event) -> None:
        seen: dict[str, int | None] = {}
        while not leaving.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._every):
                    await self._hinted.wait()
            self._hinted.clear()
            lease = self._keeper.lease
            if not self._slots.running or leaving.is_set():
                continue
            try:
                count = await self._store.arun(self._store.leases.cancellations(lease, self._tenant))
                if count != seen.setdefault(lease, 0):
                    await self._stop_recalled(lease)
                    seen[lease] = count  # not before: what could not be asked for is asked for again
            except Exception as error:
                log.debug("Cancellation check failed: %s", error)
            await asyncio.sleep(LEAST_PAUSE)

    async def _stop_recalled(self, lease: str) -> None:
        running = dict(self._slots.running)
        held = await held_under(self._store, lease, self._tenant)
        gone = await taken_away(self._store, running, held, self._tenant)
        # Meanwhile an attempt may have ended and the next one begun: that one is ours.
        same = [job_id for job_id in gone if self._slots.running.get(job_id) is running[job_id]]
        stopped = self._slots.forget(same, "cancelled") if lease == self._keeper.lease else 0
        if stopped:
            log.info("Cancelled %s running jobs", stopped)
            self._freed()
