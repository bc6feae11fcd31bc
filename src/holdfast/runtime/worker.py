"""The worker: take as many jobs as there are free slots, run them, settle what has ended in one go.

While one batch is being settled the next gathers; an idle worker polls. Everything it holds is under one
lease, renewed by a thread (``runtime/lease.py``); when that lease is lost, what was running is abandoned
and nothing of it is settled, because somebody else may have it by now.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
import socket
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from holdfast.domain.errors import HoldfastError, StaleLease, StoreError
from holdfast.domain.job import EVERY_TENANT, Claim
from holdfast.domain.outcome import Failed, Outcome, Snoozed
from holdfast.domain.settlement import Settlement, decide
from holdfast.runtime.duties import Duty, run_once, standard_duties
from holdfast.runtime.execution import Handler, execute
from holdfast.runtime.lease import Heartbeat
from holdfast.stores.base import ClaimRequest, Store

log = logging.getLogger("holdfast.worker")


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOptions:
    """``burst`` ends the worker when there is nothing left to take; ``max_jobs`` after that many."""

    queues: tuple[str, ...] = ("default",)
    concurrency: int = 16
    tenant: str = EVERY_TENANT
    lease_ttl: float = 30.0
    poll: float = 0.2
    promote_every: float = 0.5
    sweep_every: float = 5.0
    grace: float = 30.0
    burst: bool = False
    max_jobs: int | None = None
    extra_duties: tuple[Duty, ...] = field(default=())


class Worker:
    def __init__(self, store: Store, handlers: Mapping[str, Handler], options: WorkerOptions) -> None:
        self.store = store
        self.handlers = handlers
        self.options = options
        # A new name each time it starts: a restarted process must never be taken for its predecessor.
        self.name = f"worker {uuid.uuid4()} ({socket.gethostname()}:{os.getpid()})"
        self.taken = 0
        self._running: dict[str, tuple[Claim, asyncio.Task[None]]] = {}
        self._ended: list[Settlement] = []
        self._wake = asyncio.Event()
        self._leaving = asyncio.Event()
        self._stopping = False
        self._patience: asyncio.Timeout | None = None
        self._lease = ""
        self._heartbeat: Heartbeat | None = None

    def stop(self) -> None:
        """Take nothing more; end when what is running has ended, or the grace is over."""
        self._stopping = True
        self._wake.set()

    def stop_now(self) -> None:
        """Stop without grace: what is running is handed back at once. To be called on the worker's loop."""
        self.options = replace(self.options, grace=0.0)
        self.stop()
        if self._patience is not None and not self._patience.expired():
            self._patience.reschedule(asyncio.get_running_loop().time())

    async def run(self) -> None:
        await self._open_lease()
        duties = [asyncio.create_task(self._attend(duty)) for duty in self._duties()]
        try:
            await self._work()
        finally:
            # Asked, not cancelled: a statement under way is let through, whatever it does is wanted.
            self._leaving.set()
            await asyncio.gather(*duties)
            await self._leave()

    def _duties(self) -> tuple[Duty, ...]:
        options = self.options
        standard = standard_duties(options.tenant, promote_every=options.promote_every, sweep_every=options.sweep_every)
        return (*standard, *options.extra_duties)

    async def _work(self) -> None:
        while True:
            try:
                await self._settle_ended()
                took = await self._take()
            except StaleLease:
                await self._lease_lost()
                continue
            except HoldfastError as error:
                log.warning("the store cannot be used, trying again: %s", error)
                await self._sleep(random.uniform(0.2, 1.0))
                continue
            if self._ended:
                continue
            if self._stopping or self._done_with(took):
                if not self._running:
                    return
                if self._stopping:
                    return await self._drain()
            if not took or len(self._running) >= self.options.concurrency:
                await self._sleep(self.options.poll)

    def _done_with(self, took: int) -> bool:
        limit = self.options.max_jobs
        return (self.options.burst and took == 0) or (limit is not None and self.taken >= limit)

    async def _take(self) -> int:
        want = self.options.concurrency - len(self._running)
        if self.options.max_jobs is not None:
            want = min(want, self.options.max_jobs - self.taken)
        if self._stopping or want <= 0:
            return 0
        request = ClaimRequest(
            lease=self._lease,
            queues=self.options.queues,
            want=want,
            kinds=tuple(self.handlers),
            tenant=self.options.tenant,
        )
        claims = await self.store.arun(self.store.verbs.claim(request))
        self.taken += len(claims)
        for claim in claims:
            task = asyncio.create_task(self._run_one(claim))
            self._running[claim.id] = (claim, task)
        return len(claims)

    async def _run_one(self, claim: Claim) -> None:
        outcome: Outcome
        try:
            outcome = await execute(self.handlers[claim.kind], claim)
        except asyncio.CancelledError:
            outcome = Snoozed(0.0, "worker_stopped")
        if isinstance(outcome, Failed):
            log.warning("job %s (%s) failed: %s: %s", claim.id, claim.kind, outcome.code, outcome.message)
        if self._running.pop(claim.id, None) is not None:
            self._ended.append(decide(claim, outcome, random.random()))
            self._wake.set()

    async def _settle_ended(self) -> None:
        """What has ended is settled together. It stays on the list until the store has answered."""
        if not self._ended:
            return
        batch = list(self._ended)
        stale = await self.store.arun(self.store.verbs.settle(self._lease, batch, self.options.tenant))
        del self._ended[: len(batch)]
        for job_id in stale:
            log.warning("job %s was no longer ours; its outcome is not recorded", job_id)

    async def _attend(self, duty: Duty) -> None:
        while not self._leaving.is_set():
            if await run_once(duty, self.store):
                self._wake.set()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._leaving.wait(), duty.every * random.uniform(0.8, 1.2))

    async def _sleep(self, longest: float) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._wake.wait(), longest)
        self._wake.clear()

    # --- the lease, and leaving ---

    async def _open_lease(self) -> None:
        options = self.options
        lease = await self.store.arun(self.store.verbs.open_lease(self.name, options.lease_ttl, options.tenant))
        self._lease = lease.id
        loop = asyncio.get_running_loop()

        def lost() -> None:
            loop.call_soon_threadsafe(self._abandon)

        self._heartbeat = Heartbeat(self.store, lease.id, options.lease_ttl, options.tenant, lost)
        self._heartbeat.start()

    def _abandon(self) -> None:
        """The lease has ended: stop what runs, and forget how it ends."""
        log.error("lease %s was lost; %s running jobs are abandoned", self._lease, len(self._running))
        running, self._running, self._ended = self._running, {}, []
        for _, task in running.values():
            task.cancel()
        self._wake.set()

    async def _lease_lost(self) -> None:
        self._abandon()
        if self._heartbeat is not None:
            await asyncio.to_thread(self._heartbeat.stop)
        while not self._stopping:
            try:
                return await self._open_lease()
            except StoreError as error:
                log.warning("no new lease could be opened, trying again: %s", error)
                await self._sleep(random.uniform(0.2, 1.0))

    async def _drain(self) -> None:
        """Give what is running its grace, then hand it back; all of it is settled on leaving."""
        tasks = {task for _, task in self._running.values()}
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.options.grace) as self._patience:
                await asyncio.wait(tasks)
        self._patience = None
        for _, task in list(self._running.values()):
            task.cancel()
        if self._running:
            await asyncio.wait({task for _, task in self._running.values()}, timeout=1.0)
        # A thread that would not end keeps running; the job itself goes to somebody else.
        for claim, _ in list(self._running.values()):
            self._ended.append(decide(claim, Snoozed(0.0, "worker_stopped"), 0.0))
        self._running.clear()

    async def _leave(self) -> None:
        if self._heartbeat is not None:
            await asyncio.to_thread(self._heartbeat.stop)
        try:
            await self._settle_ended()
            await self.store.arun(self.store.verbs.end_lease(self._lease, "closed", self.options.tenant))
        except HoldfastError as error:
            log.warning("could not say goodbye (the lease will lapse by itself): %s", error)
