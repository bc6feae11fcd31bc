"""Runs the jobs of an app here and now, by ticks: real leases, real settlements, and nothing that polls or waits."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import TypeVar

from holdfast.app import App
from holdfast.engine.job import EVERY_TENANT, Claim, Job
from holdfast.engine.outcome import Settled, Succeeded
from holdfast.engine.states import State
from holdfast.errors import Conflict, JobFailed, NotFound, WaitTimeout
from holdfast.features.jobs.handle import Handle
from holdfast.stores.requests import ClaimRequest, JobFilter
from holdfast.testing.clock import Clock, Crashes
from holdfast.testing.drain_report import Drained, Failure, JobWaits, NeverIdle
from holdfast.worker.executor import Handler
from holdfast.worker.maintenance import feed
from holdfast.worker.options import TickOptions, TickSummary
from holdfast.worker.shutdown import Ended, Stop
from holdfast.worker.threads import Threads
from holdfast.worker.tick import Tick

R = TypeVar("R")

PAGE = 1_000
# A test may travel while a job runs, and must not take it away from itself.
LEASE = 366 * 86_400.0
IDLE = 0.1
WAITING = (State.QUEUED, State.RETRY_WAITING)

Handlers = Mapping[str, Handler]


class Runner:
    def __init__(self, app: App, clock: Clock, timeout: float | None, crashes: Crashes) -> None:
        self._app = app
        self._crashes = crashes
        self._clock = clock
        self._timeout = timeout
        # The store keeps words of a failure; a test wants the exception itself.
        self._raised: dict[tuple[str, int], BaseException] = {}

    # --- all that is due ---

    async def drain(self, queues: Sequence[str] | None, limit: int, concurrency: int) -> Drained:
        loop = asyncio.get_running_loop()
        end = None if self._timeout is None else loop.time() + self._timeout
        taken: list[str] = []
        async with self._handlers(concurrency) as handlers:
            # The first tick is always made, for what it does besides: promoting, expiring, freeing.
            ticks, waiting = 0, await self._queues(handlers)
            while ticks == 0 or waiting:
                left = None if end is None else max(0.0, end - loop.time())
                # What is enqueued meanwhile may be waited for, in a queue that is empty now.
                found = list(dict.fromkeys([*waiting, *self._own_queues()])) if queues is None else queues
                # One more than the limit: only that shows that it was not enough.
                summary = await self._tick(handlers, limit + 1 - len(taken), found, concurrency, left)
                taken += summary.ids
                if len(taken) > limit:
                    raise NeverIdle(limit, [job.kind for job in await self._taken(taken)])
                ticks += 1
                if ticks > 1 and not summary.taken:
                    break
                store = self._app._store
                await feed(store, tenant=EVERY_TENANT)  # what came of it may make jobs
                await store.arun(store.workflows.fire_callbacks(PAGE, EVERY_TENANT))
                waiting = await self._queues(handlers, queues, due=True)
        return await self._report(taken)

    async def _queues(
        self, handlers: Handlers, among: Sequence[str] | None = None, *, due: bool = False
    ) -> Sequence[str]:
        """Where jobs wait that can be run here, the one with the oldest of them first."""
        waiting = [job for job in await self._jobs(*WAITING) if job.kind in handlers]
        if due:
            waiting = [job for job in waiting if job.due_at is None or job.due_at <= self._clock.now]
        found = dict.fromkeys(job.queue for job in sorted(waiting, key=lambda job: job.position))
        return [queue for queue in found if among is None or queue in among]

    def _own_queues(self) -> list[str]:
        return sorted(self._app._queues())

    async def _report(self, taken: Sequence[str]) -> Drained:
        known = {job.id: job for job in await self._taken(taken)}
        jobs = [known[job_id] for job_id in dict.fromkeys(taken)]
        retried = {job.retry_of for job in jobs}  # as another job, which tells how it went on
        failures = [await self._failure(job) for job in jobs if _failed(job) and job.id not in retried]
        return Drained(tuple(jobs), len(taken), tuple(failures))

    async def _failure(self, job: Job) -> Failure:
        store = self._app._store
        attempts = await store.arun(store.jobs.attempts(job.id, job.tenant))
        error = self._raised.get((job.id, job.attempt))
        return Failure(job, None if isinstance(error, Ended) else error, attempts[-1].traceback)

    # --- one job ---

    async def run(self, handle: Handle[R]) -> R:
        """One attempt of this job, whatever it waits for. Answers its result, or raises what its handler raised."""
        job = await handle.aget()
        if job.state.finished:
            return await handle.aresult()
        async with self._handlers(1) as handlers:
            if job.kind not in handlers:
                raise NotFound(f"this app declares no job {job.kind!r}", code="unknown_kind")
            if job.due_at is not None:
                await handle.areschedule(reason="run by a test")
            only, crashed = {job.kind: handlers[job.kind]}, -1
            while crashed < len(self._crashes.happened):  # a job that lost its worker is begun again
                crashed = len(self._crashes.happened)
                async with self._first_in_line(job):
                    await self._tick(only, 1, [job.queue], 1, self._timeout)
        return await self._returned(handle, job.attempt)

    async def _returned(self, handle: Handle[R], before: int) -> R:
        job = await handle.aget()
        if job.attempt == before and not job.state.finished:
            raise Conflict(f"job {job.id} is {job.state}, and cannot be run now", code="not_waiting")
        if job.state is State.SUCCEEDED:
            return await handle.aresult()
        error = self._raised.get((job.id, job.attempt))
        if not job.state.finished and job.error_code is None:
            raise JobWaits(job, getattr(error.outcome if isinstance(error, Ended) else error, "reason", None))
        if isinstance(error, Exception) and not isinstance(error, Ended):
            error.add_note(f"raised by job {job.id} ({job.kind}), which is {job.state} now")
            raise error
        # Words of another process; or nothing that a test could go on after: an exit, a handler that was stopped.
        failure = await self._failure(job)
        failed = JobFailed(str(failure))
        if failure.traceback:
            failed.add_note(failure.traceback)
        raise failed from failure.error

    @asynccontextmanager
    async def _first_in_line(self, job: Job) -> AsyncIterator[None]:
        """Others of its kind may be before it in its queue: they are in other hands meanwhile, and come back as they
        were. (A claim takes what is first; there is none for one job in particular.)"""
        store = self._app._store
        while await store.arun(store.leases.promote(PAGE)) == PAGE:
            pass  # or the tick would, and they would be before it then
        alike = JobFilter(tenant=EVERY_TENANT, state=State.QUEUED, kind=job.kind, queue=job.queue, limit=2)
        if [each.id for each in await store.arun(store.jobs.list(alike))] == [job.id]:
            yield
            return
        lease = (await store.arun(store.leases.open("test kit", LEASE, EVERY_TENANT))).id
        request = ClaimRequest(lease=lease, queues=(job.queue,), want=PAGE, begin=False, kinds=(job.kind,))
        held: list[str] = []
        while claims := await store.arun(store.leases.claim(request)):
            held += [claim.id for claim in claims]
        await store.arun(store.leases.release(lease, [job.id], EVERY_TENANT))
        try:
            yield
        finally:
            await store.arun(store.leases.release(lease, held, EVERY_TENANT))
            await store.arun(store.leases.end(lease, "closed", EVERY_TENANT))

    # --- both ---

    @asynccontextmanager
    async def _handlers(self, concurrency: int) -> AsyncIterator[Handlers]:
        reached = partial(self._crashes.reached, self._app._store)
        await asyncio.to_thread(self._app.payload_rules._sync_declarations, EVERY_TENANT)
        means = self._app._handler_tools(EVERY_TENANT, concurrency, Threads(idle_for=IDLE), reached)
        try:
            yield {kind: self._watched(handler) for kind, handler in means.handlers(self._app._all_kinds).items()}
        finally:
            await means.aclose()

    def _watched(self, handler: Handler) -> Handler:
        async def call(claim: Claim, stop: Stop) -> str | Succeeded | Settled | None:
            try:
                return await handler.call(claim, stop)
            except BaseException as error:
                self._raised[claim.id, claim.attempt] = error
                raise

        return replace(handler, call=call)

    async def _tick(
        self, handlers: Handlers, limit: int, queues: Sequence[str], concurrency: int, timeout: float | None
    ) -> TickSummary:
        options = TickOptions.of(limit, queues=queues, concurrency=concurrency, timeout=timeout, lease=LEASE)
        # Without chance: a retry waits as long as its policy says at most.
        duties = (self._app._scheduler.duty(EVERY_TENANT, 0),)
        tick = Tick(self._app._store, handlers, options, extra_duties=duties, draw=lambda: 1.0)
        crashed, self._crashes.abandon = len(self._crashes.happened), tick.abandon
        try:
            summary = await tick.run()
        finally:
            self._crashes.abandon = None
        if len(self._crashes.happened) > crashed:
            store = self._app._store
            await store.arun(store.leases.reap())  # nobody else will, and the job is to be begun again
        if summary.handed_back or timeout == 0:
            running = [job.kind for job in await self._taken(summary.ids) if not job.state.finished]
            raise WaitTimeout(
                f"not done after {self._timeout:g} s; handed back: {', '.join(running) or 'nothing'}",
                fix="If a job waits for another, pass a higher concurrency to drain, or a longer timeout to the kit.",
            )
        return summary

    async def _taken(self, ids: Iterable[str]) -> list[Job]:
        """These jobs, once for each time."""
        known = {job.id: job for job in await self._jobs()}
        return [known[job_id] for job_id in ids]

    async def _jobs(self, *states: State) -> list[Job]:
        store = self._app._store
        found: list[Job] = []
        for state in states or (None,):
            wanted = JobFilter(tenant=EVERY_TENANT, state=state, limit=PAGE)
            while page := await store.arun(store.jobs.list(wanted)):
                found += page
                wanted = replace(wanted, before=page[-1].id)
        return found


def _failed(job: Job) -> bool:
    """It failed last and nothing has made that good. One that asked for another try itself is doing as it should."""
    if job.error_code is None or job.state in (State.SUCCEEDED, State.CANCELLED):
        return False
    return job.state.finished or job.error_code != "retry_asked"
