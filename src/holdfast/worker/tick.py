"""The tick: do the duties once, run at most so many jobs in this process, settle them, say what happened (HK-1).

For hosts that call and go: cron, serverless, a request handler. It needs no worker besides. Everything it takes is
under a lease of its own, ended on leaving; killed half-way, the lease lapses and the next tick (or any
worker) takes the jobs up again. Several at once are safe: what one has claimed no other can.
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
from holdfast.engine.outcome import Crashed, Failed, Outcome, Settled, Snoozed
from holdfast.engine.settlement import Ending, Settlement, hand_back, unreadable
from holdfast.engine.states import State
from holdfast.errors import HoldfastError, StaleLease, StoreError
from holdfast.stores.flow import Flow, in_thread
from holdfast.stores.requests import ClaimRequest, JobFilter
from holdfast.telemetry import observers
from holdfast.worker.end_hooks import EndReports
from holdfast.worker.executor import Handler, charged, execute
from holdfast.worker.lease import Heartbeat, held_under, taken_away
from holdfast.worker.maintenance import MaintenanceTask, standard_tasks
from holdfast.worker.options import TickOptions, TickSummary
from holdfast.worker.refusals import is_refusal, set_aside, settle_singly, settlement_of
from holdfast.worker.shutdown import Stop

if TYPE_CHECKING:
    from holdfast.features.assembly import Store

T = TypeVar("T")

log = logging.getLogger("holdfast.tick")

LAST_WORDS = 1.0
RECALL_EVERY = 1.0
PEEK = 50
_FIELDS: dict[Ending, str] = {
    "succeeded": "succeeded",
    "retry": "retried",
    "bury": "dead",
    "fail": "failed",
    "crash": "crashed",
    "snooze": "snoozed",
    "pause": "paused",
    "ask": "paused",
    "cancel": "cancelled",
}


class Tick:
    """One tick, to be run once. ``stop`` set is as if the time were up; cancelling hands back too, and then raises.

    ``draw`` is what the jitter of a retry and the order of the queues are drawn with."""

    def __init__(
        self,
        store: Store,
        handlers: Mapping[str, Handler],
        options: TickOptions,
        *,
        stop: asyncio.Event | None = None,
        extra_duties: tuple[MaintenanceTask, ...] = (),
        draw: Callable[[], float] = random.random,
    ) -> None:
        self._store = store
        self._handlers = handlers
        self._options = options
        self._stop = stop or asyncio.Event()
        self._draw = draw
        self._reports = EndReports(store, handlers)
        standard = standard_tasks(options.tenant, promote_every=0, sweep_every=0)
        self._duties = (*self._reports.watch(standard), *extra_duties)
        self._began = time.monotonic()
        self._lease = ""
        self._taken: list[str] = []
        self._running: dict[asyncio.Task[Outcome | Settled], Claim] = {}
        self._stops: WeakKeyDictionary[asyncio.Task[Outcome | Settled], Stop] = WeakKeyDictionary()
        self._counts: Counter[str] = Counter()
        self._starved = False
        self._cancelled = False

    async def run(self) -> TickSummary:
        await self._attend()
        async with self._leased():
            try:
                await self._work()
            finally:
                await self._hand_back()
        await self._reports.finish()
        if self._cancelled:
            raise asyncio.CancelledError
        more = await self._is_more()
        duration = time.monotonic() - self._began
        counts = self._counts
        ok = not any(counts[name] for name in ("dead", "failed", "crashed", "lost") if name in counts)
        taken = tuple(self._taken)
        return TickSummary(taken=len(taken), ids=taken, duration=duration, more=more, ok=ok, **counts)

    async def _attend(self) -> None:
        """Each duty once, one batch of it: a large backlog of them is shared by many ticks. One that fails is told and
        tried again by the next; without a store there is no tick."""
        for first in self._duties:
            duty: MaintenanceTask | None = first
            while duty is not None:
                try:
                    await self._do(duty)
                except StoreError:
                    raise
                except Exception as error:
                    log.warning("Maintenance task %s failed: %s", duty.name, error)
                duty = duty.then

    async def _do(self, duty: MaintenanceTask) -> None:
        if duty.run is not None:
            await duty.run(self._store)
        elif duty.flow is not None:
            duty.count(await self._store.arun(duty.flow(self._store)))

    async def _work(self) -> None:
        """Take, wait until something has ended, settle that, take again; until the limit or the end of the queue."""
        asked = asyncio.create_task(self._stop.wait())
        try:
            while not self._over:
                await self._take()
                if not self._running:
                    return
                left, waiting = self._left(), {*self._running, asked}
                pause = RECALL_EVERY if left is None else min(RECALL_EVERY, left)
                done, _ = await asyncio.wait(waiting, timeout=pause, return_when=asyncio.FIRST_COMPLETED)
                await self._settle(self._ended(done))
                if not done:
                    await self._stop_recalled()
        except StaleLease:
            self.abandon()
        finally:
            asked.cancel()

    @property
    def _over(self) -> bool:
        return self._cancelled or self._stop.is_set() or self._left() == 0

    def _left(self) -> float | None:
        """Seconds left; None if there is no limit."""
        limit = self._options.timeout
        return None if limit is None else max(0.0, self._began + limit - time.monotonic())

    async def _take(self) -> None:
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
        try:
            claims = await self._write(self._store.leases.claim(request))
        except Exception as error:
            where = (request.lease, request.queues, request.kinds)
            if not await set_aside(self._store, error, request.tenant, *where):
                raise
            claims = await self._write(self._store.leases.claim(request))
        self._starved = len(claims) < want
        bad: list[Settlement] = []
        for claim in claims:
            self._taken.append(claim.id)
            handler = self._handlers.get(claim.kind)
            if handler is None or claim.unreadable is not None:
                log.error("Job %s does not run: %s", claim.id, unreadable(claim).message)
                self._reports.expect(claim)
                bad.append(settlement_of(claim, unreadable(claim), 0.0))
                continue
            stop = Stop(handler.timeout, claim.deadline_at)
            task = asyncio.create_task(execute(handler, claim, stop))
            self._running[task], self._stops[task] = claim, stop
        await self._settle(bad)

    def _ended(self, done: Set[object]) -> list[Settlement]:
        """What has ended of what is ours still: a lease that was lost has taken all of it away."""
        found = []
        for task in [task for task in self._running if task in done]:
            claim, outcome = self._running.pop(task), task.result()
            if isinstance(outcome, Settled):
                self._reports.succeeded(claim)
                self._counts[_FIELDS["succeeded"]] += 1
                continue
            if isinstance(outcome, Failed | Crashed):
                log.warning("Job %s (%s) failed: %s: %s", claim.id, claim.kind, outcome.code, outcome.message)
            self._reports.expect(claim)
            found.append(settlement_of(claim, outcome, self._draw()))
        return found

    async def _settle(self, ended: list[Settlement], counted_as: str | None = None) -> None:
        if not ended:
            return
        try:
            stale = await self._uncut(self._settled(ended))
        except StaleLease:
            self._counts["lost"] += len(ended)
            raise
        for item in ended:
            if item.id not in stale:
                self._counts[counted_as or _FIELDS[item.ending]] += 1
        for job_id in stale:
            await self._note_gone(job_id)

    async def _settled(self, ended: list[Settlement]) -> list[str]:
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

    async def _stop_recalled(self) -> None:
        """Jobs that were cancelled while they run are told so, and need not be waited for."""
        store, tenant = self._store, self._options.tenant
        held = await held_under(store, self._lease, tenant)
        gone = await taken_away(store, [claim.id for claim in self._running.values()], held, tenant)
        for task, claim in [item for item in self._running.items() if item[1].id in gone]:
            if self._running.pop(task, None) is not None:  # not abandoned meanwhile
                self._cancel(task, "cancelled")
                await self._note_gone(claim.id)

    async def _note_gone(self, job_id: str) -> None:
        found = await self._store.arun(self._store.jobs.get(job_id, self._options.tenant))
        fate = "cancelled" if found is not None and found.state is State.CANCELLED else "lost"
        self._counts[fate] += 1
        log.warning("Job %s was %s while it ran; its result was not recorded", job_id, fate)

    async def _uncut(self, work: Coroutine[Any, Any, T]) -> T:
        """What is being written is let through, since its answer counts; a cancellation is heard in the end."""
        writing = asyncio.ensure_future(work)
        while not writing.done():
            try:
                await asyncio.wait({writing})
            except asyncio.CancelledError:
                self._cancelled = True
        return writing.result()

    def _write(self, flow: Flow[T]) -> Coroutine[Any, Any, T]:
        return self._uncut(self._store.arun(flow))

    async def _hand_back(self) -> None:
        """What runs is told to stop, and goes to whoever takes it next. A thread cannot be told: it runs on."""
        if not self._running:
            return
        log.info("Time limit reached; returning %s running jobs to the queue", len(self._running))
        for task in self._running:
            self._cancel(task, "worker_stopped")
        done, _ = await self._uncut(asyncio.wait(self._running, timeout=LAST_WORDS))
        with contextlib.suppress(StaleLease):
            await self._settle(self._ended({task for task in done if not task.cancelled()}))
            back = [self._handed_back(task, claim) for task, claim in self._running.items()]
            self._running.clear()
            await self._settle([each for each in back if each.ending == "snooze"], "handed_back")
            await self._settle([each for each in back if each.ending != "snooze"])  # begun, and not to be begun again

    def _handed_back(self, task: asyncio.Task[Outcome | Settled], claim: Claim) -> Settlement:
        outcome = hand_back(claim, at_most_once=self._handlers[claim.kind].at_most_once)
        if isinstance(outcome, Snoozed):
            outcome = Snoozed(0.0, "tick_over")
        self._reports.expect(claim)
        return settlement_of(claim, charged(outcome, self._stops[task]), 0.0)

    def abandon(self) -> None:
        """The lease has ended: somebody else may have the jobs by now, so nothing of them is written."""
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
        lease = await self._write(store.leases.open(name, options.lease_ttl, options.tenant, options.executor, kinds))
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
            await self._uncut(in_thread(beat.stop))
            try:
                await self._write(store.leases.end(lease.id, "closed", options.tenant))
            except HoldfastError as error:
                log.warning("The lease could not be closed and will expire: %s", error)

    async def _is_more(self) -> bool:
        """Whether another tick would find work, at a glance. A claim that came up short has the answer already."""
        if self._counts["handed_back"]:
            return True
        if self._starved:
            return False
        options, store = self._options, self._store
        for queue in options.queues:
            waiting = JobFilter(tenant=options.tenant, state=State.QUEUED, queue=queue, limit=PEEK)
            page = await self._store.arun(store.jobs.list(waiting))
            # A page full of what cannot be run now says nothing: one tick for nothing is the worst that follows.
            if len(page) == PEEK or any(job.due_at is None and job.kind in self._handlers for job in page):
                return True
        return False
