"""The lease of a worker: the heartbeat thread that renews it, its replacement after a loss, and cancellation checks.

The heartbeat is a thread, so that a handler that blocks the event loop does not cost the worker its jobs. When the
process dies, the heartbeat stops and the lease expires. One renewal serves every job of the process. The worker decides
about the jobs of a lost lease.
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
from collections.abc import Callable, Iterable
from contextvars import copy_context
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from holdfast.engine.job import Renewal, StopMode, worker_holder
from holdfast.engine.requirement import UNKNOWN_CODE, Code
from holdfast.errors import HoldfastError, StoreError, StoreUnavailable
from holdfast.stores.flow import in_thread, wait_limit_of
from holdfast.stores.requests import DueWork
from holdfast.telemetry.tracebacks import location_of
from holdfast.worker.maintenance import installed_version
from holdfast.worker.options import WorkerOptions
from holdfast.worker.recovery import compare_holdings
from holdfast.worker.slots import Slots
from holdfast.worker.startup import pauses

if TYPE_CHECKING:
    from holdfast.features.assembly import Store

log = logging.getLogger("holdfast.worker")


class LoopWatch:
    """Logs when the event loop is blocked. Created on the loop's thread and checked by the heartbeat thread, once per
    beat: a callback that was scheduled at one beat should have run long before the next."""

    def __init__(self, timeout: float) -> None:
        """``timeout``: seconds that the loop may need after the whole process was suspended."""
        self._timeout = timeout
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._scheduled_at = time.monotonic()
        self._responded = threading.Event()
        self._responded.set()

    def check(self) -> None:
        if not self._responded.wait(self._timeout):
            location = location_of(sys._current_frames().get(self._thread))
            log.warning(
                "The event loop was blocked for %.1f s, and with it every job of this worker%s",
                time.monotonic() - self._scheduled_at,
                "" if location is None else f": it is blocked at {location}",
            )
            return
        self._responded.clear()
        self._scheduled_at = time.monotonic()
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._responded.set)


BEATS_PER_LEASE = 3
# A worker that queries its maintenance work every few seconds renews a lease of LONG_LEASE seconds or more with it: a
# transaction and a connection fewer. It is due from EARLY parts of a beat on, so every second query renews. The thread
# renews after LATE parts: by then a query has failed to come, for example because a handler blocks the loop.
LONG_LEASE, EARLY, LATE = 30.0, 0.65, 1.2


class Heartbeat:
    """Renews a lease until it is stopped. Calls ``lost`` once if the lease has ended."""

    def __init__(
        self,
        store: Store,
        lease: str,
        ttl: float,
        tenant: str,
        lost: Callable[[], None],
        stop_requested: Callable[[StopMode], None] = lambda mode: None,
    ) -> None:
        """To be created on the worker's loop. ``stop_requested`` is called, in the heartbeat's thread, when an operator
        requests the end of the worker."""
        self._store = store
        self._lease = lease
        self._ttl = ttl
        self._tenant = tenant
        self._lost = lost
        self._stop_requested = stop_requested
        self._stop = threading.Event()
        self._renewed_at = time.monotonic()
        self._watch = LoopWatch(min(1.0, ttl / BEATS_PER_LEASE / 4))
        beat = partial(copy_context().run, self._beat)
        self._thread = threading.Thread(target=beat, name="holdfast-heartbeat", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def end(self) -> None:
        """Start no further beat."""
        self._stop.set()

    def stop(self) -> None:
        """End, and wait for the thread for a limited time: nothing depends on a beat that waits for the database."""
        self.end()
        self._thread.join(timeout=min(self._ttl, wait_limit_of.get().left()))

    def due(self) -> bool:
        """Whether a query of the worker has to renew the lease, so that the thread need not."""
        return self._ttl >= LONG_LEASE and time.monotonic() - self._renewed_at > EARLY * self._ttl / BEATS_PER_LEASE

    def answered(self, renewed: Renewal, asked_at: float) -> bool:
        """Record the answer to a renewal. Returns whether the lease lives. Called on any thread."""
        if self._stop.is_set():
            return False
        if not renewed:
            self._lost()
            return False
        if renewed in ("drain", "stop"):
            self._stop_requested(renewed)
        self._renewed_at = max(self._renewed_at, asked_at)
        return True

    def _beat(self) -> None:
        every = pause = (LATE if self._ttl >= LONG_LEASE else 1.0) * self._ttl / BEATS_PER_LEASE
        while not self._stop.wait(pause):
            started = time.monotonic()
            self._watch.check()
            if (left := self._renewed_at + every - started) > 0.1 * every:  # a query has renewed the lease
                pause = left
                continue
            try:
                renewal = self._store.leases.renew(self._lease, self._ttl, self._tenant)
                # A response after the lease has expired is of no use.
                renewed = self._store.run(replace(renewal, response_timeout=self._ttl))
            except Exception as error:
                # The lease may outlast the outage, so it is not lost yet. The next beat comes sooner.
                if isinstance(error, StoreUnavailable):
                    self._store.outage.failed(error)
                else:
                    log.warning("Heartbeat failed: %s", error)
                pause = every / 4
                continue
            if not self.answered(renewed, started):
                return
            pause = max(0.0, every - (time.monotonic() - started))


class LeaseKeeper:
    """Opens, renews, replaces and closes the lease of a worker.

    ``lease`` is the id of the current lease, empty while there is none. ``lost`` is set when it has ended.
    """

    def __init__(
        self,
        store: Store,
        options: WorkerOptions,
        kinds: Iterable[str],
        wake: Callable[[], None],
        stop_requested: Callable[[StopMode], None] = lambda mode: None,
        code: Code = UNKNOWN_CODE,
    ) -> None:
        """``wake`` wakes the worker, which checks whether the lease was lost. ``stop_requested`` is called on the loop
        when an operator requests the end of the worker, and again with every heartbeat."""
        # A new name for every start: a restarted process must never be taken for its predecessor.
        self.name = worker_holder(uuid.uuid4(), socket.gethostname(), os.getpid())
        self.lease = ""
        self.lost = False
        self._store = store
        self._options = options
        self._kinds = tuple(kinds)
        self._code = code
        self._wake = wake
        self._stop_requested = stop_requested
        self._heartbeat: Heartbeat | None = None

    async def open_first(self) -> None:
        """Open the lease. Wait for an unreachable database until the worker is stopped; a burst retries a few times."""
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
            self.name,
            ttl,
            tenant,
            options.executor,
            self._kinds,
            options.queues,
            options.concurrency,
            installed_version(),
            self._code,
        )
        # On a connection of the exchanges, which come next: one connection fewer to open.
        lease = await self._store.arun(replace(opening, hot=True))
        self.lease = lease.id
        loop = asyncio.get_running_loop()

        def lost() -> None:
            loop.call_soon_threadsafe(self._lose, lease.id)

        def stop_requested(mode: StopMode) -> None:
            loop.call_soon_threadsafe(self._stop_requested, mode)

        self._heartbeat = Heartbeat(self._store, lease.id, ttl, tenant, lost, stop_requested)
        self._heartbeat.start()

    def _lose(self, lease: str) -> None:
        if lease == self.lease:
            self.lost = True
            self._wake()

    async def due_work(self) -> DueWork | None:
        """Query the due maintenance work, and renew the lease with it if that is due."""
        heartbeat, asked_at = self._heartbeat, time.monotonic()
        renews = heartbeat is not None and heartbeat.due()
        ttl = self._options.lease_ttl if renews else None
        due = await self._store.due_work(self.lease, self._options.tenant, ttl)
        if due is not None and due.renewal is not None and heartbeat is not None:
            heartbeat.answered(due.renewal, asked_at)
        return due

    async def revive(self) -> bool:
        """Renew a lease that has expired. Succeeds if no recovery run has ended it yet; then no job is lost."""
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
        """Open a new lease after a loss; none if the worker is stopped first."""
        self.lease = ""
        await self._stop_heartbeat()
        self.lost = False
        while not stopping():
            try:
                return await self._open()
            except Exception as error:  # any error: a worker without a lease has nothing else to do
                if isinstance(error, StoreUnavailable):
                    self._store.outage.failed(error)
                else:
                    log.warning("No new lease could be opened, retrying: %s", error)
                await asyncio.sleep(random.uniform(0.2, 1.0))

    async def close(self) -> None:
        await self._stop_heartbeat()
        try:
            if self.lease:
                await self._store.arun(self._store.leases.end(self.lease, "closed", self._options.tenant))
        except HoldfastError as error:
            log.warning("The lease could not be closed and will expire: %s", error)

    def stop_renewing(self) -> None:
        """A lease that could not be closed must expire."""
        if self._heartbeat is not None:
            self._heartbeat.end()

    async def _stop_heartbeat(self) -> None:
        if self._heartbeat is not None:
            await in_thread(self._heartbeat.stop)


# A notification may come with every commit of a busy database. The pause between checks, in seconds.
LEAST_PAUSE = 0.1


class CancellationCheck:
    """Stops running jobs that were cancelled: at regular intervals, and soon after a notification."""

    def __init__(
        self, store: Store, slots: Slots, keeper: LeaseKeeper, options: WorkerOptions, freed: Callable[[], None]
    ) -> None:
        """``freed`` is called when a slot is free again."""
        self._store = store
        self._slots = slots
        self._keeper = keeper
        self._tenant = options.tenant
        self._every = options.check_cancelled_every
        self._freed = freed
        self._notified = asyncio.Event()

    def check_soon(self) -> None:
        """Check now, instead of at the next interval."""
        self._notified.set()

    async def run(self, leaving: asyncio.Event) -> None:
        seen: dict[str, int | None] = {}
        while not leaving.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._every):
                    await self._notified.wait()
            self._notified.clear()
            lease = self._keeper.lease
            if not self._slots.running or leaving.is_set():
                continue
            try:
                count = await self._store.arun(self._store.leases.cancellations(lease, self._tenant))
                if count != seen.setdefault(lease, 0):
                    await self._stop_cancelled(lease)
                    seen[lease] = count  # only now, so that a failed check is repeated
            except Exception as error:
                log.debug("Cancellation check failed: %s", error)
            await asyncio.sleep(LEAST_PAUSE)

    async def _stop_cancelled(self, lease: str) -> None:
        running = dict(self._slots.running)
        _, cancelled = await compare_holdings(self._store, lease, running, self._tenant)
        # Meanwhile an attempt may have ended and the job's next attempt begun here: that one is not cancelled.
        same = [job_id for job_id in cancelled if self._slots.running.get(job_id) is running[job_id]]
        stopped = self._slots.forget(same, "cancelled") if lease == self._keeper.lease else 0
        if stopped:
            log.info("Cancelled %s running jobs", stopped)
            self._freed()
