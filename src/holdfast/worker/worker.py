"""The worker: claims jobs, runs their handlers and settles the results, in batch exchanges with the database.

An exchange is one round trip: it settles the results since the last exchange and claims as many jobs as there are free
slots. While one exchange is under way, the jobs of the previous one run and new results collect. So a busy worker
settles and claims in bulk, and an idle one waits for nothing but the database. All jobs of a worker are under one
lease, which a thread renews (``worker/lease.py``). When the lease is lost, running jobs are abandoned and none of them
is settled, because another worker may have claimed them by now.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import random
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING

from holdfast.engine.job import Exchange, StopMode
from holdfast.engine.requirement import UNKNOWN_CODE, Code
from holdfast.engine.settlement import Settlement
from holdfast.stores.requests import ClaimRequest
from holdfast.telemetry import observers
from holdfast.worker.claim_order import NOTIFICATION_DELAY, Announcements, ClaimHints, ClaimOrder, ClaimStart, SlotTimer
from holdfast.worker.end_hooks import EndReports
from holdfast.worker.executor import Handler
from holdfast.worker.lease import CancellationCheck, LeaseKeeper
from holdfast.worker.maintenance import (
    SAFETY_POLL,
    TASK_BATCH,
    UPKEEP,
    Maintenance,
    MaintenanceTask,
    promotion,
    run_once,
)
from holdfast.worker.options import SHORT_LOOK, WorkerOptions
from holdfast.worker.recovery import ExchangeRecovery
from holdfast.worker.shutdown import CANCEL_AFTER, GracePeriod, ShutdownDeadline
from holdfast.worker.slots import LARGEST_EXCHANGE, RetryTimer, Slots

if TYPE_CHECKING:
    from holdfast.features.assembly import Store

__all__ = ["Worker", "WorkerOptions"]

log = logging.getLogger("holdfast.worker")

# A worker that starts with a backlog claims first. Background work (listener, maintenance) starts when the worker is
# idle for the first time, at the latest after this many seconds.
BACKGROUND_DELAY = 1.0


class Worker:
    def __init__(
        self,
        store: Store,
        handlers: Mapping[str, Handler],
        options: WorkerOptions,
        on_leave: Callable[[], Awaitable[None]] | None = None,
        code: Code = UNKNOWN_CODE,
    ) -> None:
        """``on_leave`` releases the resources of the handlers, after the last of them has ended."""
        self.store = store
        self.handlers = handlers
        self.options = options
        self.taken = 0
        self.woken = self.fell_asleep = False  # for SleepingWorker
        self._busy_at = time.monotonic()
        self._on_leave = on_leave
        self._loop: asyncio.AbstractEventLoop | None = None

        # Claiming, running and settling.
        self._wake = asyncio.Event()
        self._reports = EndReports(store, handlers)
        self._slots = Slots(handlers, self._wake.set, self._reports)
        self._claim_order = ClaimOrder(options.queues, options.weights)
        self._hints = ClaimHints()
        self._announcements = Announcements(store)
        self._slot_timer = SlotTimer(self._expect_jobs)
        self._retry_timer = RetryTimer(partial(run_once, promotion(options.tenant), store), self._expect_jobs)
        self._exchanges: set[asyncio.Task[None]] = set()
        self._jobs_requested = 0  # by the exchanges under way
        self._results_in_flight = 0  # settlements in the exchanges under way
        self._asleep = False
        self._notification_deferred = False

        # The lease, and what threatens it.
        self._keeper = LeaseKeeper(store, options, handlers, self._wake.set, self._stop_requested, code)
        self._cancellations = CancellationCheck(store, self._slots, self._keeper, options, self._expect_jobs)
        self._recovery = ExchangeRecovery(store, options, handlers, self._slots, self._keeper, self._reports, self.stop)

        # Background work.
        self._maintenance: Maintenance | None = None
        self._tasks_not_run: set[str] = set()  # maintenance tasks that may make jobs ready and have not run yet
        self._first_idle = asyncio.Event()

        # Stopping.
        self._stopping = False
        self._draining = False  # stopping, but running jobs have as much time as they need
        self._leaving = asyncio.Event()  # background work has to end
        self._grace = GracePeriod(options.grace)
        self._deadline = ShutdownDeadline()

    @property
    def name(self) -> str:
        """The holder of its leases."""
        return self._keeper.name

    @property
    def lease(self) -> str:
        return self._keeper.lease

    def ready(self) -> tuple[bool, str]:
        """Whether it can claim jobs, and the reason if it cannot. May be called from any thread."""
        if self._stopping:
            return False, "stopping"
        if self.store.outage.reason:
            return False, f"database unreachable: {self.store.outage.reason}"
        return (True, "ready") if self._keeper.lease else (False, "starting: no lease yet")

    # --- stopping ---

    def stop(self) -> None:
        """Claim nothing more, and end when the running jobs have ended or the grace period is over. An unreachable
        database delays the end by a few seconds at most."""
        self._stopping, self._draining = True, False
        self._wake.set()
        self._on_loop(self._start_deadline)

    def drain(self) -> None:
        """Claim nothing more, and end when the running jobs have ended, however long they take. A later ``stop`` gives
        them the grace period. To be called on the worker's loop."""
        if not self._stopping:
            self._stopping = self._draining = True
            self._wake.set()

    def stop_now(self) -> None:
        """Stop without a grace period: running jobs return to the queue at once. To be called on the worker's loop."""
        self._grace.cut()
        self.stop()

    def _stop_requested(self, mode: StopMode) -> None:
        """An operator requests the end of this worker (``app.workers``). Every heartbeat repeats the request."""
        if self._stopping and not (self._draining and mode == "stop"):
            return
        log.info("An operator asked this worker to %s", mode)
        if mode == "stop":
            self.stop()
        else:
            self.drain()

    def _start_deadline(self) -> None:
        """Running jobs have the grace period; without any there is nothing to wait for."""
        if self._draining:
            return
        busy = self._slots.running or self._slots.ended or self._results_in_flight
        self._deadline.start(self._grace.left() if busy else 0.0)

    # --- running ---

    async def run(self) -> None:
        """Run until stopped, or until the options end it. When cancelled, it returns running jobs to the queue before
        it ends, like ``stop_now``. Cancelled a second time it ends at once, and its lease expires."""
        serving = asyncio.create_task(self._serve())
        try:
            await asyncio.shield(serving)
        except asyncio.CancelledError:
            self.stop_now()
            await serving
            raise

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        observers.working_as.set(self.name)
        if self._stopping:
            self._start_deadline()
        with self._deadline.limits_waits():
            try:
                if await self._deadline.wait_for(self._keeper.open_first()):
                    await self._run()
                else:
                    log.error("Database unreachable; no lease could be opened")
            finally:
                self._keeper.stop_renewing()

    async def _run(self) -> None:
        tasks = self._reports.report_reaped(self.options.maintenance_tasks())
        self._tasks_not_run = {task.name for task in tasks if task.readies}
        background = asyncio.create_task(self._run_background(tasks))
        try:
            if not await self._deadline.wait_for(self._work()):
                await self._abandon()
        finally:
            # Background work is requested to end, not cancelled: a statement under way may complete, unless the
            # database does not respond.
            self._leaving.set()
            self._retry_timer.stop()
            self._first_idle.set()
            self._cancellations.check_soon()
            if self._stopping:
                self._deadline.shorten(unreachable=self._recovery.failing)
            await self._deadline.wait_for(background)
            await self._reports.finish()
            if self._on_leave is not None:
                await self._on_leave()
            await self._deadline.wait_for(self._keeper.close())

    async def _run_background(self, tasks: Iterable[MaintenanceTask]) -> None:
        """Listen for notifications, run maintenance and check for cancelled jobs."""
        cancellations = asyncio.create_task(self._cancellations.run(self._leaving))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(BACKGROUND_DELAY):
                await self._first_idle.wait()
        stop_listening = None
        if self.options.notify and not self._leaving.is_set():
            stop_listening = self.store.listen(self._on_notification, self._channels, self._awaited)
            self._expect_jobs()  # jobs that were enqueued before were not announced
        found, query = self._found_jobs if stop_listening else None, self._keeper.due_work
        common = self.store, tasks, self.options.tenant, self._expect_jobs, self._task_has_run
        self._maintenance = Maintenance(*common, query=query, found_jobs=found)
        try:
            await asyncio.gather(cancellations, self._maintenance.run(self._leaving))
        finally:
            if stop_listening is not None:
                stop_listening()

    async def _work(self) -> None:
        while True:
            if self._keeper.lost:
                await self._replace_lease()
            if self._stopping and not self._draining and self._slots.running and self._grace.is_over():
                await self._slots.hand_back()
            if self._recovery.must_reconcile and not self._exchanges and not self._gives_up():
                await self._recovery.reconcile()
            while len(self._exchanges) < self.store.pipeline_depth and self._begin_exchange():
                pass
            if self._is_done():
                return
            await self._sleep()

    async def _replace_lease(self) -> None:
        """Abandon all jobs, because another worker may have claimed them by now, and open a new lease."""
        log.error("Lease %s was lost; abandoning %s running jobs", self._keeper.lease, len(self._slots.running))
        self._slots.forget(list(self._slots.running), "lease_lost")
        self._slots.ended.clear()
        self._reports.keep_only(())
        self._recovery.must_reconcile = False
        await self._keeper.replace(lambda: self._stopping)

    def _is_done(self) -> bool:
        if self._gives_up() and not self._exchanges:
            self._log_unrecorded()
            return True
        if self._slots.running or self._slots.ended:
            self._busy_at = time.monotonic()
        if self._slots.running or self._slots.ended or self._exchanges:
            return False
        if self._stopping or (self.options.max_jobs is not None and self.taken >= self.options.max_jobs):
            return True
        # A burst ends when no job is ready, and no maintenance task is left that may make one ready.
        may_have_jobs = self._hints.may_have_jobs or not self._claim_order.exhausted
        self.fell_asleep = self._idle_for() <= 0
        return (self.options.burst or self.fell_asleep) and not may_have_jobs and not self._tasks_not_run

    def _idle_for(self) -> float:
        """Seconds until the worker has been idle for as long as it may."""
        limit = self.options.idle_after
        if limit is None:
            return math.inf
        if self.woken and not self.taken:
            limit = min(limit, SHORT_LOOK)
        return self._busy_at + limit - time.monotonic()

    def _gives_up(self) -> bool:
        """The worker is stopping, its grace period is over, and the database does not accept its results."""
        leaving = self._stopping and not self._draining
        return leaving and self._recovery.failing and not self._slots.running and self._grace.is_over()

    async def _abandon(self) -> None:
        """The database has not responded in time: cancel the exchanges under way and stop the running jobs."""
        self._log_unrecorded()
        self._recovery.last_exchange_failed = True
        self._slots.forget(list(self._slots.running), "worker_stopped")
        for exchange in self._exchanges:
            exchange.cancel()
        if self._exchanges:
            await asyncio.wait(self._exchanges, timeout=CANCEL_AFTER)

    def _log_unrecorded(self) -> None:
        unrecorded = len(self._slots.ended) + self._results_in_flight + len(self._slots.running)
        log.error("Database unreachable; %s results not recorded, the lease expires", unrecorded)

    # --- exchanges ---

    def _begin_exchange(self) -> bool:
        """Start an exchange if there are results to settle, or free slots and maybe jobs to claim."""
        free = self._free_slots()
        if self._recovery.must_reconcile or self._keeper.lost or self._gives_up():
            return False
        if not self._slots.ended and not (self._hints.may_have_jobs and free > 0):
            return False
        # At most half of the slots, so that the other half has jobs to run meanwhile.
        want = max(0, min(free, LARGEST_EXCHANGE, -(-self.options.concurrency // 2)))
        from_poll = self._hints.begin_exchange(want)
        ended = self._slots.take_ended()
        self._jobs_requested += want
        self._results_in_flight += len(ended)
        exchange = asyncio.create_task(self._exchange(ended, want, from_poll))
        self._exchanges.add(exchange)
        exchange.add_done_callback(self._exchange_over)
        return True

    def _free_slots(self) -> int:
        if self._stopping:
            return 0
        free = self.options.concurrency - len(self._slots.running) - self._jobs_requested
        if self.options.max_jobs is not None:
            free = min(free, self.options.max_jobs - self.taken - self._jobs_requested)
        return free

    async def _exchange(self, ended: list[Settlement], want: int, from_poll: bool) -> None:
        lease, start = self._keeper.lease, self._claim_order.start() if want else ClaimStart({}, {})
        queues, kinds, tenant = self._claim_order.queues(), tuple(self.handlers), self.options.tenant
        request = ClaimRequest(lease=lease, queues=queues, want=want, kinds=kinds, tenant=tenant, after=start.after)
        try:
            if want and self._slot_timer.take_due():
                await self.store.arun(self.store.limits.wake(TASK_BATCH, self.options.tenant))
            exchange = await self.store.arun(self.store.leases.exchange(ended, request))
        except Exception as error:  # any error: the results must not be lost with it
            if lease == self._keeper.lease:
                self._hints.may_have_jobs = True
                await self._recovery.exchange_failed(ended, error)
            return
        finally:
            self._jobs_requested -= want
            self._results_in_flight -= len(ended)
            self._retry_timer.expect(() if self.options.burst else ended)  # a burst leaves what waits
        self._recovery.last_exchange_failed, self._recovery.failures = False, 0
        if self.store.outage.reason:
            self.store.outage.answered()
        if self._reports.waiting:
            self._reports.recorded(ended, exchange.stale)
        for job_id in exchange.stale:
            log.warning("Job %s is no longer claimed by this worker; its result was not recorded", job_id)
        if lease != self._keeper.lease:
            return  # the lease was lost meanwhile: recovery returns the claimed jobs
        if want:
            self._learn(exchange, want, start, from_poll)
        if any(settlement.ending == "ask" for settlement in ended):
            # The job that notifies people of an approval may have been enqueued after the claim of this exchange.
            self._hints.may_have_jobs = True
        if self._stopping and exchange.claims:
            self._slots.return_unstarted((claim.id, claim.attempt) for claim in exchange.claims)
            self._start_deadline()
        else:
            self.taken += len(exchange.claims)
            if exchange.claims:
                self._busy_at = time.monotonic()
            self._slots.start(exchange.claims)
        if not exchange.live and await self._keeper.revive():
            self._expect_jobs()

    def _learn(self, exchange: Exchange, want: int, start: ClaimStart, from_poll: bool) -> None:
        self._hints.claimed(exchange, want, from_poll=from_poll)
        if exchange.live:
            self._claim_order.learn(exchange, want, start)
            if exchange.next_in is not None and len(exchange.claims) < want:
                self._slot_timer.expect(exchange.next_in, self._hints.empty_claims)

    def _exchange_over(self, exchange: asyncio.Task[None]) -> None:
        self._exchanges.discard(exchange)
        self._wake.set()
        if not exchange.cancelled() and (error := exchange.exception()) is not None:
            # It failed before it had started the claimed jobs. Reconciling returns those that were not started.
            log.error("An exchange with the database failed half-way", exc_info=error)
            self._recovery.must_reconcile = self._hints.may_have_jobs = True

    # --- sleeping and waking ---

    async def _sleep(self) -> None:
        """Sleep until something happens, or until the next poll."""
        longest = self._grace.shortened(self._poll_interval() * random.uniform(0.8, 1.2))
        longest = min(longest, max(0.05, self._idle_for()))
        idle = self._free_slots() > 0 and not self._exchanges
        decided = self._announcements.decide(idle, self._hints.empty_claims)
        self._asleep = True
        if not self._exchanges:
            self._first_idle.set()
        try:
            if not (idle and self._hints.may_have_jobs):
                async with asyncio.timeout(longest if decided is None else min(longest, decided)):
                    await self._wake.wait()
        except TimeoutError:
            if decided is None:
                self._poll()
            elif idle:
                self._hints.expect_jobs()
        self._asleep = False
        self._wake.clear()

    def _awaited(self) -> list[str]:
        queues = self.options.queues if self._announcements.wanted else ()
        return [*queues, *([UPKEEP] if self._maintenance is not None and self._maintenance.awaits else ())]

    def _poll(self) -> None:
        """Claim, unless the query of maintenance would find jobs that were not announced."""
        if self._maintenance is None or not self._maintenance.awaits or self._poll_interval() < SAFETY_POLL:
            self._hints.poll()

    def _found_jobs(self) -> None:
        """Jobs wait in the queues. An idle worker was not notified of them."""
        if self._asleep and self._announcements.wanted and self._free_slots() > 0 and not self._exchanges:
            self._hints.poll()
            self._wake.set()

    def _poll_interval(self) -> float:
        """Polling is only a safety net where every new job is announced. Not if a poll has just returned jobs that were
        not announced, nor before the head of every queue was read."""
        announced = self.store.listening and self._maintenance is not None and self._maintenance.notifies
        if not announced or not self._claim_order.exhausted or self._hints.distrusts_notifications:
            return self.options.poll
        return max(self.options.poll, SAFETY_POLL)

    def _expect_jobs(self) -> None:
        self._hints.expect_jobs()
        self._wake.set()

    def _task_has_run(self, name: str) -> None:
        if name in self._tasks_not_run:
            self._tasks_not_run.discard(name)
            self._wake.set()

    def _channels(self) -> list[str]:
        """The notifications to receive: new jobs in a queue, a changed order of a queue (with a leading space), and
        cancelled jobs under the lease."""
        return [*self.options.queues, *(f" {queue}" for queue in self.options.queues), self._keeper.lease, UPKEEP]

    def _on_notification(self, channel: str) -> None:
        """Called by the listener on its thread. An empty channel: notifications may have been missed. Only a sleeping
        worker is woken; a busy one claims soon anyway."""
        missed = channel == ""
        if missed or channel == self._keeper.lease:
            self._on_loop(self._cancellations.check_soon)
        if missed:
            self._on_loop(self._claim_order.all_reordered)
        if (maintenance := self._maintenance) is not None and (missed or channel == UPKEEP):
            self._on_loop(maintenance.told)
        if channel.startswith(" "):
            self._on_loop(self._claim_order.queue_reordered, channel := channel[1:])
        if not missed and channel not in self.options.queues:
            return
        if self._hints.too_many_empty_claims:
            if not self._notification_deferred and self._loop is not None:
                self._notification_deferred = True
                self._on_loop(self._loop.call_later, NOTIFICATION_DELAY, self._deferred_notification)
            return
        self._hints.expect_jobs()
        if self._asleep:
            self._announcements.announced()
            self._on_loop(self._notified)

    def _notified(self) -> None:
        """Begin the exchange in this step of the loop. To wake the worker first would take three."""
        if not self._asleep or self._exchanges or not self._begin_exchange():
            self._wake.set()

    def _deferred_notification(self) -> None:
        self._notification_deferred = False
        self._expect_jobs()

    def _on_loop(self, call: Callable[..., object], *args: object) -> None:
        """Call on the worker's loop, from another thread. A loop that is closed needs no call."""
        if (loop := self._loop) is None:
            return
        try:
            loop.call_soon_threadsafe(call, *args)
        except RuntimeError:
            if not loop.is_closed():
                raise
