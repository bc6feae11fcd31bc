"""The worker: take as many jobs as there are free slots, run them, settle what has ended, in turns.

A turn is one round trip: it settles what has ended since the last one and takes as many jobs as there is room for.
While one turn is under way the jobs of the one before run and the next gathers, so a busy worker settles and takes
in bulk, and an idle one waits for nothing but the store. All it holds is under one lease, renewed by a thread
(``runtime/lease.py``); when the lease is lost, what was running is abandoned and nothing of it is settled, because
somebody else may have it by now.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import socket
import uuid
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace

from holdfast.domain.errors import HoldfastError, StaleLease, StoreError
from holdfast.domain.job import EVERY_TENANT
from holdfast.domain.queues import check_weights
from holdfast.domain.settlement import Settlement
from holdfast.runtime.duties import Duty, attend, standard_duties
from holdfast.runtime.execution import Handler, ended_by_itself
from holdfast.runtime.lease import Heartbeat
from holdfast.runtime.search import Search
from holdfast.runtime.slots import Slots
from holdfast.stores.base import ClaimRequest, Store

log = logging.getLogger("holdfast.worker")

# The more in one turn the less each job costs, up to about here; and locks are kept for tens of milliseconds by then.
LARGEST_TURN = 1_000
# A hint may come with every commit of a busy database; whether jobs were taken away is asked no more often than this.
LEAST_RECALL_PAUSE = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOptions:
    """``burst`` ends the worker when there is nothing left to take; ``max_jobs`` after that many.

    ``notify`` has the store tell when there is something to do; without it the worker looks every ``poll`` seconds.
    With ``weights`` each look begins with a queue drawn by its weight, without them with the first in the list.
    ``executor`` is the label it works under.
    """

    queues: tuple[str, ...] = ("default",)
    weights: Mapping[str, int] | None = None
    concurrency: int = 16
    tenant: str = EVERY_TENANT
    executor: str = "worker"
    lease_ttl: float = 30.0
    poll: float = 0.2
    notify: bool = True
    promote_every: float = 0.5
    sweep_every: float = 5.0
    recall_every: float = 1.0
    grace: float = 30.0
    burst: bool = False
    max_jobs: int | None = None
    extra_duties: tuple[Duty, ...] = field(default=())

    def __post_init__(self) -> None:
        check_weights(self.weights)


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
        # A new name each time it starts: a restarted process must never be taken for its predecessor.
        self.name = f"worker {uuid.uuid4()} ({socket.gethostname()}:{os.getpid()})"
        self.taken = 0
        self._wake = asyncio.Event()
        self._recalled = asyncio.Event()
        self._leaving = asyncio.Event()
        self._slots = Slots(handlers, self._wake.set)
        self._search = Search(options.queues, options.weights)
        self._turns: set[asyncio.Task[None]] = set()
        self._asked = 0  # how many jobs the turns under way may bring
        self._hungry = True  # there may be something to take
        self._asleep = False
        self._stopping = False
        self._deadline: float | None = None
        self._doubt = False  # a turn ended in an error: what the store thinks we hold must be compared
        self._failing = False  # the last turn did
        self._lost = False  # the lease is
        self._lease = ""
        self._heartbeat: Heartbeat | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def stop(self) -> None:
        """Take nothing more; end when what is running has ended, or the grace is over."""
        self._stopping = True
        self._wake.set()

    def stop_now(self) -> None:
        """Stop without grace: what is running is handed back at once. To be called on the worker's loop."""
        self.options = replace(self.options, grace=0.0)
        self._deadline = None
        self.stop()

    async def run(self) -> None:
        self._loop = asyncio.get_running_loop()
        await self._open_first_lease()
        hush = self.store.listen(self._heard) if self.options.notify else None
        options = self.options
        duties = (
            *standard_duties(options.tenant, promote_every=options.promote_every, sweep_every=options.sweep_every),
            *options.extra_duties,
        )
        beside = [asyncio.create_task(attend(duty, self.store, self._call, self._leaving)) for duty in duties]
        beside.append(asyncio.create_task(self._attend_recalls()))
        try:
            await self._work()
        finally:
            # Asked, not cancelled: a statement under way is let through, whatever it does is wanted.
            self._leaving.set()
            self._recalled.set()
            await asyncio.gather(*beside)
            if hush is not None:
                await asyncio.to_thread(hush)
            if self._on_leave is not None:
                await self._on_leave()
            await self._leave()

    # --- the loop ---

    async def _work(self) -> None:
        while True:
            if self._lost:
                await self._replace_lease()
            if self._doubt and not self._turns:
                await self._compare()
            while len(self._turns) < self.store.lanes and self._begin_turn():
                pass
            if self._done():
                return
            if self._stopping and self._slots.running and self._grace_is_over():
                await self._slots.hand_back()
            await self._sleep()

    def _begin_turn(self) -> bool:
        """Start a turn if there is a reason for one: something has ended, or there is room and maybe work."""
        room = self._room()
        if self._doubt or self._lost or self._gives_up():
            return False
        if not self._slots.ended and not (self._hungry and room > 0):
            return False
        # Half of the slots at most: the other half has something to run meanwhile.
        want = max(0, min(room, LARGEST_TURN, -(-self.options.concurrency // 2)))
        if want:
            self._hungry = False  # until it brings all it asked for, or somebody speaks up
        self._asked += want
        turn = asyncio.create_task(self._turn(self._slots.take_ended(LARGEST_TURN), want))
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

    async def _turn(self, ended: list[Settlement], want: int) -> None:
        lease, after = self._lease, self._search.after()
        request = ClaimRequest(
            lease=lease,
            queues=self._search.order(),
            want=want,
            kinds=tuple(self.handlers),
            tenant=self.options.tenant,
            after=after,
        )
        try:
            turn = await self.store.arun(self.store.verbs.turn(ended, request))
        except Exception as error:  # whatever it is: what has ended must not be lost with it
            await self._turn_failed(ended, lease, error)
            return
        finally:
            self._asked -= want
        self._failing = False
        for job_id in turn.stale:
            log.warning("job %s was no longer ours; its outcome is not recorded", job_id)
        if lease != self._lease:
            return  # it was lost meanwhile: the reaper has whatever this brought
        if want and turn.live:
            self._search.learn(turn, want, bool(after))
            self._hungry = self._hungry or len(turn.claims) == want
        self.taken += len(turn.claims)
        self._slots.start(turn.claims)
        if not turn.live:
            await self._revive()

    async def _turn_failed(self, ended: list[Settlement], lease: str, error: Exception) -> None:
        """What has ended is kept, and settled when the store is back, if the lease still holds."""
        if lease != self._lease:
            return
        self._slots.ended[:0] = ended
        self._doubt = self._failing = self._hungry = True
        if isinstance(error, StaleLease):
            self._lost = True
            return
        known = isinstance(error, HoldfastError)
        log.warning("the store cannot be used, trying again: %s", error, exc_info=None if known else error)
        await asyncio.sleep(random.uniform(0.1, 0.5))

    def _turn_over(self, turn: asyncio.Task[None]) -> None:
        self._turns.discard(turn)
        self._wake.set()
        if not turn.cancelled() and (error := turn.exception()) is not None:
            raise error

    def _done(self) -> bool:
        if self._gives_up() and not self._turns:
            log.error("the store is away: %s outcomes are not recorded, the lease lapses", len(self._slots.ended))
            return True
        if self._slots.running or self._slots.ended or self._turns:
            return False
        limit = self.options.max_jobs
        return (
            self._stopping
            or (self.options.burst and self._search.exhausted and not self._hungry)
            or (limit is not None and self.taken >= limit)
        )

    def _gives_up(self) -> bool:
        """It was asked to stop, its grace is over, and what has ended cannot be settled."""
        away = self._failing or self._doubt  # with two turns under way, one may come through and the other not
        return self._stopping and away and not self._slots.running and self._grace_is_over()

    def _grace_is_over(self) -> bool:
        now = asyncio.get_running_loop().time()
        if self._deadline is None:
            self._deadline = now + self.options.grace
        return now >= self._deadline

    async def _sleep(self) -> None:
        """Until something happens, or it is time to look whether something has."""
        longest = self.options.poll * random.uniform(0.8, 1.2)
        if self._deadline is not None:
            longest = min(longest, max(0.0, self._deadline - asyncio.get_running_loop().time()))
        self._asleep = True
        try:
            if not self._hungry or self._room() <= 0 or self._turns:
                async with asyncio.timeout(longest):
                    await self._wake.wait()
        except TimeoutError:
            self._hungry = True
        self._asleep = False
        self._wake.clear()

    # --- being told ---

    def _call(self) -> None:
        """There is something to take."""
        self._hungry = True
        self._wake.set()

    def _heard(self, what: str) -> None:
        """A hint from the store, in a thread of its own. A busy worker is not disturbed: it looks again anyway."""
        if self._loop is None or self._loop.is_closed():
            return
        if what == self._lease or what == "":
            self._loop.call_soon_threadsafe(self._recalled.set)
        if what == "" or what in self.options.queues:
            self._hungry = True
            if self._asleep:
                self._loop.call_soon_threadsafe(self._wake.set)

    async def _attend_recalls(self) -> None:
        """Running jobs that were cancelled are stopped. One row tells whether there are any."""
        seen: dict[str, int | None] = {}
        while not self._leaving.is_set():
            try:
                async with asyncio.timeout(self.options.recall_every):
                    await self._recalled.wait()
            except TimeoutError:
                pass
            self._recalled.clear()
            running, lease = list(self._slots.running), self._lease
            if not running or self._leaving.is_set():
                continue
            try:
                count = await self.store.arun(self.store.verbs.recalls(lease, self.options.tenant))
                if count != seen.setdefault(lease, 0):
                    seen[lease] = count
                    await self._stop_recalled(running, lease)
            except Exception as error:
                log.debug("could not ask for recalls: %s", error)
            await asyncio.sleep(LEAST_RECALL_PAUSE)

    async def _stop_recalled(self, running: list[str], lease: str) -> None:
        held = await self.store.arun(self.store.verbs.holdings(lease, self.options.tenant))
        if lease == self._lease:
            missing = set(running) - {holding.id for holding in held}
            own = {job_id for job_id in missing if await ended_by_itself(self.store, job_id, self.options.tenant)}
            gone = self._slots.forget(missing - own, "cancelled")
            if gone:
                log.info("%s running jobs were cancelled", gone)
                self._call()

    # --- the lease, and leaving ---

    async def _open_first_lease(self) -> None:
        """A server that is just being restarted is waited for; one that is not there is an error."""
        for pause in (0.2, 0.4, 0.8, 1.6):
            try:
                return await self._open_lease()
            except StoreError as error:
                log.warning("no lease could be opened, trying again: %s", error)
                await asyncio.sleep(pause * random.uniform(0.5, 1.0))
        await self._open_lease()

    async def _open_lease(self) -> None:
        options = self.options
        opening = self.store.verbs.open_lease(
            self.name, options.lease_ttl, options.tenant, options.executor, tuple(self.handlers)
        )
        lease = await self.store.arun(opening)
        self._lease = lease.id
        loop = asyncio.get_running_loop()

        def lost() -> None:
            loop.call_soon_threadsafe(self._lose, lease.id)

        self._heartbeat = Heartbeat(self.store, lease.id, options.lease_ttl, options.tenant, lost)
        self._heartbeat.start()

    def _lose(self, lease: str) -> None:
        if lease == self._lease:
            self._lost = True
            self._wake.set()

    async def _revive(self) -> None:
        """The lease ran out, and nobody may have noticed yet: then it can be renewed, and nothing is lost."""
        renewal = self.store.verbs.renew_lease(self._lease, self.options.lease_ttl, self.options.tenant)
        try:
            if await self.store.arun(renewal):
                self._call()
            else:
                self._lose(self._lease)
        except Exception as error:
            log.warning("the lease could not be renewed: %s", error)

    async def _replace_lease(self) -> None:
        """Somebody else may have our jobs by now: stop what runs, forget how it ends, begin anew."""
        log.error("lease %s was lost; %s running jobs are abandoned", self._lease, len(self._slots.running))
        self._lease = ""
        self._slots.forget(list(self._slots.running), "lease_lost")
        self._slots.ended.clear()
        if self._heartbeat is not None:
            await asyncio.to_thread(self._heartbeat.stop)
        self._lost = self._doubt = False
        while not self._stopping:
            try:
                return await self._open_lease()
            except Exception as error:  # whatever it is, a worker without a lease has nothing else to do
                log.warning("no new lease could be opened, trying again: %s", error)
                await asyncio.sleep(random.uniform(0.2, 1.0))

    async def _compare(self) -> None:
        """After an error nobody knows what became of the last turn. Whatever the store thinks we hold and we know
        nothing of is handed back: it was taken, but never begun. What it no longer holds for us is dropped."""
        try:
            holdings = await self.store.arun(self.store.verbs.holdings(self._lease, self.options.tenant))
        except StaleLease:
            self._lost = True
            return
        except Exception as error:
            log.warning("the store cannot be used, trying again: %s", error)
            await asyncio.sleep(random.uniform(0.1, 0.5))
            return
        held = {holding.id: holding.attempt for holding in holdings}
        slots = self._slots
        slots.forget(set(slots.running) - held.keys(), "cancelled")
        slots.ended = [item for item in slots.ended if held.get(item.id) == item.attempt]
        known = slots.running.keys() | {item.id for item in slots.ended}
        for job_id, attempt in held.items():
            if job_id not in known:
                slots.ended.append(Settlement(job_id, attempt, "snooze", note={"reason": "never_begun"}))
        self._doubt = False

    async def _leave(self) -> None:
        if self._heartbeat is not None:
            await asyncio.to_thread(self._heartbeat.stop)
        try:
            if self._lease:
                await self.store.arun(self.store.verbs.end_lease(self._lease, "closed", self.options.tenant))
        except HoldfastError as error:
            log.warning("could not say goodbye (the lease will lapse by itself): %s", error)
