"""The worker: take as many jobs as there are free slots, run them, settle what has ended, in turns.

A turn is one round trip: it settles what has ended since the last one and takes as many jobs as there is room for.
While one turn is under way the jobs of the one before run and the next gathers, so a busy worker settles and takes
in bulk, and an idle one waits for nothing but the store. All it holds is under one lease, renewed by a thread
(``worker/lease.py``); when the lease is lost, what was running is abandoned and nothing of it is settled, because
somebody else may have it by now.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from holdfast.engine.job import StopMode
from holdfast.engine.settlement import Settlement
from holdfast.errors import HoldfastError, Refused, StaleLease, StoreUnavailable
from holdfast.stores.outage import pause_after
from holdfast.stores.requests import ClaimRequest
from holdfast.telemetry import observers
from holdfast.worker.claim_order import ClaimOrder
from holdfast.worker.end_hooks import EndReports
from holdfast.worker.executor import Handler
from holdfast.worker.lease import CancellationCheck, LeaseKeeper, compare
from holdfast.worker.maintenance import TASK_BATCH, Maintenance, MaintenanceTask
from holdfast.worker.options import WorkerOptions
from holdfast.worker.rate_limits import SlotTimer
from holdfast.worker.refusals import is_refusal, set_aside, settle_singly
from holdfast.worker.shutdown import LET_GO, Departure, GracePeriod
from holdfast.worker.slots import Slots

if TYPE_CHECKING:
    from holdfast.features.assembly import Store

__all__ = ["Worker", "WorkerOptions"]

log = logging.getLogger("holdfast.worker")

# A worker that starts beside a backlog begins with that. Whatever else it does waits until it rests, but no longer.
LATEST_REST = 1.0
# How often an idle worker polls though it is told of new jobs; and for how long it polls at its own pace again after it
# has found jobs of which it was not told.
SAFETY_POLL, DOUBT = 5.0, 60.0
# The more in one turn the less each job costs, up to about here; and locks are kept for tens of milliseconds by then.
LARGEST_TURN = 1_000
# Any login of the database can send hints. After so many claims in a row that found nothing, hints are put off.
VAIN = 20
VAIN_PAUSE = 0.02


class Worker:
    def __init__(
        self,
        store: Store,
        handlers: Mapping[str, Handler],
        options: WorkerOptions,
        on_leave: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """``on_leave`` lets go of what the handlers were run with, after the last of them has ended."""
        self.store = store
        self._on_leave = on_leave
        self.handlers = handlers
        self.options = options
        self.taken = 0
        self._wake = asyncio.Event()
        self._leaving = asyncio.Event()
        self._rested = asyncio.Event()
        self._reports = EndReports(store, handlers)
        self._slots = Slots(handlers, self._wake.set, self._reports)
        self._search = ClaimOrder(options.queues, options.weights)
        self._keeper = LeaseKeeper(store, options, handlers, self._wake.set, self._requested)
        self._recalls = CancellationCheck(store, self._slots, self._keeper, options, self._call)
        self._slot_timer = SlotTimer(self._call)
        self._turns: set[asyncio.Task[None]] = set()
        self._asked = 0  # how many jobs the turns under way may bring
        self._hungry = True  # there may be something to take
        self._plenty = False  # the last turn brought all it asked for: there may be enough for two
        self._asleep = False
        self._in_vain = 0  # claims in a row that found nothing
        self._put_off = False  # a hint is heeded a little later
        self._stopping = False
        self._draining = False  # stopping, and running jobs have as long as they need
        self._settling = 0  # how many outcomes the turns under way carry
        self._grace = GracePeriod(options.grace)
        self._parting = Departure()
        self._doubt = False  # a turn ended in an error: what the store thinks we hold must be compared
        self._refused = False  # it may have been for one of the outcomes in it
        self._failing = False  # the last turn did
        self._failures = 0  # in a row, without an exchange that came through
        self._maintenance: Maintenance | None = None
        self._polled = False  # the next exchange is begun by the clock: nobody has announced anything
        self._doubtful_until = 0.0  # announcements may be missing
        self._unlooked: set[str] = set()  # duties that have not yet looked whether there is something to do
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def name(self) -> str:
        """What its leases are held under."""
        return self._keeper.name

    def ready(self) -> tuple[bool, str]:
        """Whether it can take jobs, and the reason if it cannot. May be called from any thread."""
        if self._stopping:
            return False, "stopping"
        if self.store.outage.reason:
            return False, f"database unreachable: {self.store.outage.reason}"
        return (True, "ready") if self._keeper.lease else (False, "starting: no lease yet")

    def stop(self) -> None:
        """Take nothing more; end when what is running has ended, or the grace is over. A store that is away is not
        waited for much longer than that."""
        self._stopping, self._draining = True, False
        self._wake.set()
        self._on_loop(self._part)

    def drain(self) -> None:
        """Claim nothing more, and end when the running jobs have ended, however long they take. A later ``stop`` gives
        them the grace period. To be called on the worker's loop."""
        if not self._stopping:
            self._stopping = self._draining = True
            self._wake.set()

    def _requested(self, mode: StopMode) -> None:
        """An operator asked this worker to end (``app.workers``); the request is repeated with every heartbeat."""
        if self._stopping and not (self._draining and mode == "stop"):
            return
        log.info("An operator asked this worker to %s", mode)
        if mode == "stop":
            self.stop()
        else:
            self.drain()

    def _part(self) -> None:
        """Running jobs have the grace period; without any there is nothing to wait for."""
        if self._draining:
            return
        busy = self._slots.running or self._slots.ended or self._settling
        self._parting.begin(self._grace.left() if busy else 0.0)

    def stop_now(self) -> None:
        """Stop without grace: what is running is handed back at once. To be called on the worker's loop."""
        self._grace.cut()
        self.stop()

    async def run(self) -> None:
        """Until it is stopped, or its options say so. Cancelled, it hands back what is running before it ends, as with
        ``stop_now``; cancelled once more it just ends, and its lease lapses."""
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
            self._part()
        with self._parting.kept():
            try:
                if await self._parting.wait_for(self._keeper.open_first()):
                    await self._run()
                else:
                    log.error("Database unreachable; no lease could be opened")
            finally:
                self._keeper.fall_silent()

    async def _run(self) -> None:
        duties = self._reports.watch(self.options.duties())
        self._unlooked = {duty.name for duty in duties if duty.readies}
        beside = asyncio.create_task(self._beside(duties))
        try:
            if not await self._parting.wait_for(self._work()):
                await self._let_go()
        finally:
            # Asked, not cancelled: a statement under way is let through, whatever it does is wanted. Unless nobody
            # answers it.
            self._leaving.set()
            self._rested.set()
            self._recalls.hint()
            if self._stopping:
                self._parting.hasten(away=self._failing or self._doubt)
            await self._parting.wait_for(beside)
            await self._reports.finish()
            if self._on_leave is not None:
                await self._on_leave()
            await self._parting.wait_for(self._keeper.leave())

    async def _let_go(self) -> None:
        """The store has not answered in time. What it was asked for is forgotten, and what still runs is stopped."""
        self._lament()
        self._failing = True
        self._slots.forget(list(self._slots.running), "worker_stopped")
        for turn in self._turns:
            turn.cancel()
        if self._turns:
            await asyncio.wait(self._turns, timeout=LET_GO)

    async def _beside(self, duties: Iterable[MaintenanceTask]) -> None:
        """What is done besides taking jobs and running them: hearing of more, the duties, recalls."""
        recalls = asyncio.create_task(self._recalls.attend(self._leaving))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LATEST_REST):
                await self._rested.wait()
        hush = None
        if self.options.notify and not self._leaving.is_set():
            hush = self.store.listen(self._heard, self._names)
            self._call()  # what came in before that was not heard of
        self._maintenance = Maintenance(
            self.store,
            duties,
            self.options.tenant,
            lease=lambda: self._keeper.lease,
            call=self._call,
            looked=self._looked,
        )
        try:
            await asyncio.gather(recalls, self._maintenance.run(self._leaving))
        finally:
            if hush is not None:
                hush()

    # --- the loop ---

    async def _work(self) -> None:
        while True:
            if self._keeper.lost:
                await self._replace_lease()
            if self._stopping and not self._draining and self._slots.running and self._grace.is_over():
                await self._slots.hand_back()
            if self._doubt and not self._turns and not self._gives_up():
                self._failures += 1  # here, not for each exchange: one loss may have ended several of them
                if pause := pause_after(self._failures):
                    await asyncio.sleep(pause)
                await self._compare()
            while len(self._turns) < self.store.lanes and self._begin_turn():
                pass
            if self._done():
                return
            await self._sleep()

    async def _replace_lease(self) -> None:
        """Somebody else may have our jobs by now: stop what runs, forget how it ends, begin anew."""
        log.error("Lease %s was lost; abandoning %s running jobs", self._keeper.lease, len(self._slots.running))
        self._slots.forget(list(self._slots.running), "lease_lost")
        self._slots.ended.clear()
        self._reports.keep(())
        self._doubt = False
        await self._keeper.replace(lambda: self._stopping)

    async def _compare(self) -> None:
        try:
            await compare(self.store, self._slots, self._keeper.lease, self.options.tenant)
            self._reports.keep(self._slots.ended)
            if self._refused:
                await self._settle_singly()
            self._doubt = self._refused = False
        except StaleLease:
            self._keeper.lost = True
        except Exception as error:
            self._report(error)

    async def _settle_singly(self) -> None:
        ended = self._slots.take_ended(LARGEST_TURN)
        try:
            lease, tenant, unmovable = self._keeper.lease, self.options.tenant, self._slots.unmovable
            await settle_singly(self.store, lease, ended, tenant, unmovable, self._reports.recorded)
        except BaseException:
            self._slots.ended[:0] = ended  # those that are settled by now are found out by the next comparison
            raise

    # --- turns ---

    def _begin_turn(self) -> bool:
        """Start a turn if there is a reason for one: something has ended, or there is room and maybe work."""
        room = self._room()
        if self._doubt or self._keeper.lost or self._gives_up():
            return False
        if not self._slots.ended and not (self._hungry and room > 0):
            return False
        # Half of the slots at most: the other half has something to run meanwhile.
        want = max(0, min(room, LARGEST_TURN, -(-self.options.concurrency // 2)))
        if want:
            self._hungry = self._plenty  # or when this one brings all it asks for, or somebody speaks up
        self._asked += want
        ended = self._slots.take_ended(LARGEST_TURN)
        self._settling += len(ended)
        polled, self._polled = self._polled, False
        turn = asyncio.create_task(self._turn(ended, want, polled))
        self._turns.add(turn)
        turn.add_done_callback(self._turn_over)
        return True

    def _room(self) -> int:
        if self._stopping:
            return 0
        room = self.options.concurrency - len(self._slots.running) - self._asked
        if self.options.max_jobs is not None:
            room = min(room, self.options.max_jobs - self.taken - self._asked)
        return room

    async def _turn(self, ended: list[Settlement], want: int, polled: bool) -> None:
        lease, look = self._keeper.lease, self._search.look()
        request = ClaimRequest(
            lease=lease,
            queues=self._search.order(),
            want=want,
            kinds=tuple(self.handlers),
            tenant=self.options.tenant,
            after=look.after,
        )
        try:
            if want and self._slot_timer.take_due():
                await self.store.arun(self.store.limits.wake(TASK_BATCH, self.options.tenant))
            flow = self.store.leases.exchange(ended, request)
            turn = await self.store.arun(flow)
        except Exception as error:  # whatever it is: what has ended must not be lost with it
            await self._turn_failed(ended, lease, error)
            return
        finally:
            self._asked -= want
            self._settling -= len(ended)
        self._failing, self._failures = False, 0
        self.store.outage.answered()
        self._reports.recorded(ended, turn.stale)
        for job_id in turn.stale:
            log.warning("Job %s is no longer claimed by this worker; its result was not recorded", job_id)
        if lease != self._keeper.lease:
            return  # it was lost meanwhile: the reaper has whatever this brought
        if want:
            self._in_vain = 0 if turn.claims else self._in_vain + 1
        if want and turn.live:
            self._search.learn(turn, want, look)
            if turn.next_in is not None and len(turn.claims) < want:
                self._slot_timer.expect(turn.next_in, self._in_vain)
            self._plenty = len(turn.claims) == want
            if polled and turn.claims:
                self._doubtful_until = time.monotonic() + DOUBT
            self._hungry = self._hungry or self._plenty
        if any(settlement.ending == "ask" for settlement in ended):
            self._hungry = True  # the job that tells people of a question may be there only when the turn is over
        if self._stopping and turn.claims:
            self._slots.decline((claim.id, claim.attempt) for claim in turn.claims)
            self._part()  # they are to be handed back
        else:
            self.taken += len(turn.claims)
            self._slots.start(turn.claims)
        if not turn.live and await self._keeper.revive():
            self._call()

    async def _turn_failed(self, ended: list[Settlement], lease: str, error: Exception) -> None:
        """What has ended is kept, and settled when the store is back, if the lease still holds."""
        if lease != self._keeper.lease:
            return
        self._slots.ended[:0] = ended
        self._doubt = self._failing = self._hungry = True
        self._refused = bool(ended) and is_refusal(error)
        if isinstance(error, StaleLease):
            self._keeper.lost = True
            return
        if not ended and await self._set_aside(lease, error):
            return
        if isinstance(error, Refused) and error.code == "executor_refused":
            # Taken off the list of those who may execute: what runs may end, and there is nothing else to be done.
            log.error("The worker stops claiming jobs: %s", error)
            self.stop()
            return
        self._report(error)

    def _report(self, error: Exception) -> None:
        if isinstance(error, StoreUnavailable):
            self.store.outage.failed(error)
            return
        known = isinstance(error, HoldfastError)
        log.warning("An exchange with the database failed, retrying: %s", error, exc_info=None if known else error)

    async def _set_aside(self, lease: str, error: Exception) -> bool:
        """Whether the turn failed for rows that are passed over now: then the next one brings the others."""
        try:
            options = self.options
            return await set_aside(self.store, error, options.tenant, lease, options.queues, tuple(self.handlers))
        except Exception as trouble:
            log.warning("The refused rows cannot be found: %s", trouble)
            return False

    def _turn_over(self, turn: asyncio.Task[None]) -> None:
        self._turns.discard(turn)
        self._wake.set()
        if not turn.cancelled() and (error := turn.exception()) is not None:
            # Between what the store answered and what was begun of it: what was not is found out, and handed back.
            log.error("An exchange with the database failed half-way", exc_info=error)
            self._doubt = self._hungry = True

    # --- ending, and waiting ---

    def _done(self) -> bool:
        if self._gives_up() and not self._turns:
            self._lament()
            return True
        if self._slots.running or self._slots.ended or self._turns:
            return False
        limit = self.options.max_jobs
        return (
            self._stopping
            or (self.options.burst and self._search.exhausted and not self._hungry and not self._unlooked)
            or (limit is not None and self.taken >= limit)
        )

    def _gives_up(self) -> bool:
        """It was asked to stop, its grace is over, and what has ended cannot be settled."""
        away = self._failing or self._doubt  # with two turns under way, one may come through and the other not
        leaving = self._stopping and not self._draining
        return leaving and away and not self._slots.running and self._grace.is_over()

    def _lament(self) -> None:
        lost = len(self._slots.ended) + self._settling + len(self._slots.running)
        log.error("Database unreachable; %s results not recorded, the lease expires", lost)

    async def _sleep(self) -> None:
        """Until something happens, or it is time to look whether something has."""
        longest = self._grace.shortened(self._poll() * random.uniform(0.8, 1.2))
        self._asleep = True
        if not self._turns:
            self._rested.set()
        try:
            if not self._hungry or self._room() <= 0 or self._turns:
                async with asyncio.timeout(longest):
                    await self._wake.wait()
        except TimeoutError:
            self._hungry = self._polled = True
        self._asleep = False
        self._wake.clear()

    def _poll(self) -> float:
        """Seldom where every new job is announced: then polling is only a safety net. Not when a poll has just found
        jobs that nobody had announced, nor before the head of every queue was seen."""
        told = self.store.listening and self._maintenance is not None and self._maintenance.notifies
        if not told or not self._search.exhausted or time.monotonic() < self._doubtful_until:
            return self.options.poll
        return max(self.options.poll, SAFETY_POLL)

    # --- being told ---

    def _call(self) -> None:
        """There is something to take."""
        self._hungry = True
        self._polled = False
        self._wake.set()

    def _looked(self, duty: str) -> None:
        """A burst ends when there is nothing to take, and nothing that a duty would have made ready."""
        if duty in self._unlooked:
            self._unlooked.discard(duty)
            self._wake.set()

    def _heard(self, what: str) -> None:
        """A notification from the store, on the listener's thread. A busy worker polls soon anyway and is not woken."""
        if what == self._keeper.lease or what == "":
            self._on_loop(self._recalls.hint)
        if what == "":
            self._on_loop(self._search.hint_all)
        if what.startswith(" "):  # the order of a queue was changed
            what = what[1:]
            self._on_loop(self._search.hint, what)
        if what == "" or what in self.options.queues:
            if self._in_vain >= VAIN:
                if not self._put_off and self._loop is not None:
                    self._put_off = True
                    self._on_loop(self._loop.call_later, VAIN_PAUSE, self._call_late)
                return
            self._hungry = True
            self._polled = False
            if self._asleep:
                self._on_loop(self._wake.set)

    def _on_loop(self, call: Callable[..., object], *args: object) -> None:
        """From another thread. The loop may close at any moment: then there is nothing left to tell."""
        loop = self._loop
        if loop is None:
            return
        try:
            loop.call_soon_threadsafe(call, *args)
        except RuntimeError:
            if not loop.is_closed():
                raise

    def _names(self) -> list[str]:
        """What it wants to be told of."""
        return [*self.options.queues, *(f" {queue}" for queue in self.options.queues), self._keeper.lease]

    def _call_late(self) -> None:
        self._put_off = False
        self._call()
