"""The tick: run every maintenance task once and a limited number of jobs, in this process, and return a summary.

For hosts that call and return: cron, serverless functions, request handlers. No worker is needed. A tick claims its
jobs under its own lease, which it closes at the end. If it is killed, the lease expires, and the next tick or a worker
takes over the jobs. Several ticks at once are safe: a job that one has claimed cannot be claimed by another.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
import socket
import time
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Set
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakKeyDictionary

from holdfast.engine.job import Claim
from holdfast.engine.order import drawn_order
from holdfast.engine.outcome import Outcome, Settled, Snoozed
from holdfast.engine.requirement import UNKNOWN_CODE, Code
from holdfast.engine.settlement import Ending, Settlement, hand_back, unreadable
from holdfast.engine.states import State
from holdfast.errors import HoldfastError, StaleLease, StoreError
from holdfast.stores.flow import Flow, in_thread
from holdfast.stores.requests import ClaimRequest, JobFilter
from holdfast.telemetry import observers
from holdfast.worker.end_hooks import EndReports
from holdfast.worker.executor import Handler, charged, execute
from holdfast.worker.lease import Heartbeat
from holdfast.worker.maintenance import MaintenanceTask, standard_tasks
from holdfast.worker.options import TickOptions, TickSummary
from holdfast.worker.recovery import claim_jobs, compare_holdings, is_refusal, settle_singly
from holdfast.worker.shutdown import Stop
from holdfast.worker.slots import settlement_of

if TYPE_CHECKING:
    from holdfast.features.assembly import Store

T = TypeVar("T")

log = logging.getLogger("holdfast.tick")

# Seconds that a cancelled task may take to end.
STOP_TIMEOUT = 1.0
# Seconds between checks for cancelled jobs.
CANCELLATION_EVERY = 1.0
PEEK = 50
# The field of the summary in which an ending is counted.
_FIELDS: dict[Ending, str] = {
    "succeeded": "succeeded",
    "retry": "retried",
    "dead_letter": "dead",
    "fail": "failed",
    "crash": "crashed",
    "snooze": "snoozed",
    "pause": "paused",
    "ask": "paused",
    "cancel": "cancelled",
}


class Tick:
    """One tick, to be run once. Setting ``stop`` ends it like its timeout. When cancelled, it returns running jobs to
    the queue before it raises. ``draw`` is the random source for the jitter of retries and the order of queues."""

    def __init__(
        self,
        store: Store,
        handlers: Mapping[str, Handler],
        options: TickOptions,
        *,
        stop: asyncio.Event | None = None,
        extra_tasks: tuple[MaintenanceTask, ...] = (),
        draw: Callable[[], float] = random.random,
        code: Code = UNKNOWN_CODE,
    ) -> None:
        self._store = store
        self._code = code
        self._handlers = handlers
        self._options = options
        self._stop = stop or asyncio.Event()
        self._draw = draw
        self._reports = EndReports(store, handlers)
        standard = standard_tasks(options.tenant, promote_every=0, sweep_every=0)
        self._tasks = (*self._reports.report_reaped(standard), *extra_tasks)
        self._began = time.monotonic()
        self._lease = ""
        self._taken: list[str] = []
        self._running: dict[asyncio.Task[Outcome | Settled], Claim] = {}
        self._stops: WeakKeyDictionary[asyncio.Task[Outcome | Settled], Stop] = WeakKeyDictionary()
        self._counts: Counter[str] = Counter()
        self._last_claim_short = False
        self._cancelled = False

    async def run(self) -> TickSummary:
        await self._run_maintenance()
        async with self._leased():
            try:
                await self._work()
            finally:
                await self._hand_back()
        await self._reports.finish()
        if self._cancelled:
            raise asyncio.CancelledError
        more = await self._has_more()
        duration = time.monotonic() - self._began
        counts = self._counts
        ok = not any(counts[name] for name in ("dead", "failed", "crashed", "lost") if name in counts)
        taken = tuple(self._taken)
        return TickSummary(taken=len(taken), ids=taken, duration=duration, more=more, ok=ok, **counts)

    async def _run_maintenance(self) -> None:
        """Run one batch of each task: many ticks share a large backlog. A failed task is logged, and the next tick
        retries it. Errors of the database end the tick."""
        for first in self._tasks:
            task: MaintenanceTask | None = first
            while task is not None:
                try:
                    if task.run is not None:
                        await task.run(self._store)
                    elif task.flow is not None:
                        task.count(await self._store.arun(task.flow(self._store)))
                except StoreError:
                    raise
                except Exception as error:
                    log.warning("Maintenance task %s failed: %s", task.name, error)
                task = task.then

    async def _work(self) -> None:
        """Claim, wait until a job has ended, settle it, claim again, until the limit or the end of the queue."""
        stop = asyncio.create_task(self._stop.wait())
        try:
            while not self._over:
                await self._claim()
                if not self._running:
                    return
                left, waiting = self._left(), {*self._running, stop}
                pause = CANCELLATION_EVERY if left is None else min(CANCELLATION_EVERY, left)
                done, _ = await asyncio.wait(waiting, timeout=pause, return_when=asyncio.FIRST_COMPLETED)
                await self._settle(self._ended(done))
                if not done:
                    await self._stop_cancelled()
        except StaleLease:
            self.abandon()
        finally:
            stop.cancel()

    @property
    def _over(self) -> bool:
        return self._cancelled or self._stop.is_set() or self._left() == 0

    def _left(self) -> float | None:
        """Seconds left; None if there is no limit."""
        limit = self._options.timeout
        return None if limit is None else max(0.0, self._began + limit - time.monotonic())

    async def _claim(self) -> None:
        options = self._options
        want = min(options.concurrency - len(self._running), options.limit - len(self._taken))
        if want <= 0:
            return
        request = ClaimRequest(
            lease=self._lease,
            queues=drawn_order(options.queues, options.weights, self._draw),
            want=want,
            kinds=tuple(self._handlers),
            tenant=options.tenant,
        )
        claims = await claim_jobs(self._store, request, self._write)
        self._last_claim_short = len(claims) < want
        dead_letters: list[Settlement] = []
        for claim in claims:
            self._taken.append(claim.id)
            handler = self._handlers.get(claim.kind)
            if handler is None or claim.unreadable is not None:
                log.error("Job %s does not run: %s", claim.id, unreadable(claim).message)
                self._reports.expect(claim)
                dead_letters.append(settlement_of(claim, unreadable(claim), 0.0))
                continue
            stop = Stop(handler.timeout, claim.deadline_at)
            task = asyncio.create_task(execute(handler, claim, stop))
            self._running[task], self._stops[task] = claim, stop
        await self._settle(dead_letters)

    def _ended(self, done: Set[object]) -> list[Settlement]:
        """The settlements of the tasks that are done, without those of jobs that the tick no longer holds."""
        settlements = []
        for task in [task for task in self._running if task in done]:
            claim, outcome = self._running.pop(task), task.result()
            if isinstance(outcome, Settled):
                self._reports.succeeded(claim)
                self._counts[_FIELDS["succeeded"]] += 1
                continue
            self._reports.expect(claim)
            settlements.append(settlement_of(claim, outcome, self._draw()))
        return settlements

    async def _settle(self, ended: list[Settlement], counted_as: str | None = None) -> None:
        if not ended:
            return
        try:
            stale = await self._complete(self._record(ended))
        except StaleLease:
            self._counts["lost"] += len(ended)
            raise
        for item in ended:
            if item.id not in stale:
                self._counts[counted_as or _FIELDS[item.ending]] += 1
        for job_id in stale:
            await self._note_gone(job_id)

    async def _record(self, ended: list[Settlement]) -> list[str]:
        """Settle, and return the ids of stale settlements."""
        store, tenant = self._store, self._options.tenant
        try:
            stale = await store.arun(store.leases.settle(self._lease, ended, tenant))
        except Exception as error:
            if not is_refusal(error):
                raise
            log.warning("Settling the results of %s jobs one by one: %s", len(ended), error)
            return await settle_singly(store, self._lease, ended, tenant, set(), self._reports.recorded)
        self._reports.recorded(ended, stale)
        return stale

    async def _stop_cancelled(self) -> None:
        """Stop the running jobs that were cancelled, without waiting for them."""
        store, tenant = self._store, self._options.tenant
        running = [claim.id for claim in self._running.values()]
        _, cancelled = await compare_holdings(store, self._lease, running, tenant)
        for task, claim in [item for item in self._running.items() if item[1].id in cancelled]:
            if self._running.pop(task, None) is not None:  # not abandoned meanwhile
                self._cancel(task, "cancelled")
                await self._note_gone(claim.id)

    async def _note_gone(self, job_id: str) -> None:
        job = await self._store.arun(self._store.jobs.get(job_id, self._options.tenant))
        fate = "cancelled" if job is not None and job.state is State.CANCELLED else "lost"
        self._counts[fate] += 1
        log.warning("Job %s was %s while it ran; its result was not recorded", job_id, fate)

    async def _complete(self, work: Coroutine[Any, Any, T]) -> T:
        """Wait for a write even when cancelled, because its result is needed. ``run`` raises the cancellation later."""
        writing = asyncio.ensure_future(work)
        while not writing.done():
            try:
                await asyncio.wait({writing})
            except asyncio.CancelledError:
                self._cancelled = True
        return writing.result()

    def _write(self, flow: Flow[T]) -> Coroutine[Any, Any, T]:
        return self._complete(self._store.arun(flow))

    async def _hand_back(self) -> None:
        """Stop the running jobs and return them to the queue. A thread cannot be stopped and keeps running."""
        if not self._running:
            return
        log.info("Time limit reached; returning %s running jobs to the queue", len(self._running))
        for task in self._running:
            self._cancel(task, "worker_stopped")
        done, _ = await self._complete(asyncio.wait(self._running, timeout=STOP_TIMEOUT))
        with contextlib.suppress(StaleLease):
            await self._settle(self._ended({task for task in done if not task.cancelled()}))
            handed_back = [self._handed_back(task, claim) for task, claim in self._running.items()]
            self._running.clear()
            await self._settle([item for item in handed_back if item.ending == "snooze"], "handed_back")
            await self._settle([item for item in handed_back if item.ending != "snooze"])  # at-most-once jobs

    def _handed_back(self, task: asyncio.Task[Outcome | Settled], claim: Claim) -> Settlement:
        outcome = hand_back(claim, at_most_once=self._handlers[claim.kind].at_most_once)
        if isinstance(outcome, Snoozed):
            outcome = Snoozed(0.0, "tick_over")
        self._reports.expect(claim)
        return settlement_of(claim, charged(outcome, self._stops[task]), 0.0)

    def abandon(self) -> None:
        """The lease has ended: stop all jobs and settle none, because another worker may have claimed them by now."""
        log.error("Lease %s was lost; abandoning %s running jobs", self._lease, len(self._running))
        self._counts["lost"] += len(self._running)
        for task in self._running:
            self._cancel(task, "lease_lost")
        self._running.clear()

    def _cancel(self, task: asyncio.Task[Outcome | Settled], why: str) -> None:
        self._stops[task].set(why)
        task.cancel(why)

    @contextlib.asynccontextmanager
    async def _leased(self) -> AsyncIterator[None]:
        options, store = self._options, self._store
        name = f"tick {uuid.uuid4()} ({socket.gethostname()}:{os.getpid()})"
        kinds = tuple(self._handlers)
        lease = await self._write(
            store.leases.open(name, options.lease_ttl, options.tenant, options.executor, kinds, code=self._code)
        )
        self._lease = lease.id
        observers.working_as.set(name)
        loop = asyncio.get_running_loop()

        def lost() -> None:
            loop.call_soon_threadsafe(self.abandon)

        beat = Heartbeat(self._store, lease.id, options.lease_ttl, options.tenant, lost)
        beat.start()
        try:
            yield
        finally:
            await self._complete(in_thread(beat.stop))
            try:
                await self._write(store.leases.end(lease.id, "closed", options.tenant))
            except HoldfastError as error:
                log.warning("The lease could not be closed and will expire: %s", error)

    async def _has_more(self) -> bool:
        """Whether another tick would probably find work. Not if the last claim returned fewer jobs than requested."""
        if self._counts["handed_back"]:
            return True
        if self._last_claim_short:
            return False
        options, store = self._options, self._store
        for queue in options.queues:
            waiting = JobFilter(tenant=options.tenant, state=State.QUEUED, queue=queue, limit=PEEK)
            page = await self._store.arun(store.jobs.list(waiting))
            # A page full of jobs that cannot run now proves nothing: at worst the next tick finds nothing to do.
            if len(page) == PEEK or any(job.due_at is None and job.kind in self._handlers for job in page):
                return True
        return False
