"""Run the jobs of an app in a test, with ticks: real leases and settlements, without polling or waiting.

The errors of the test kit are here and not in ``holdfast.errors``, because only tests raise them.

    JobFailed
    └── JobsFailed     jobs failed in a drain with ``check``
    HoldfastError
    ├── NeverIdle      jobs keep enqueuing jobs, or run again at once, forever
    └── JobWaits       the job that was run has no result yet
"""

from __future__ import annotations

import asyncio
import textwrap
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeVar

from holdfast.app import App
from holdfast.app.internals import all_kinds_of, handler_tools, queues_of, scheduler_of, session_of
from holdfast.app.replayer import ReplayReport
from holdfast.engine.job import EVERY_TENANT, Claim, Job
from holdfast.engine.outcome import Settled, Succeeded
from holdfast.engine.states import State
from holdfast.errors import Conflict, HoldfastError, JobFailed, NotFound, WaitTimeout
from holdfast.features.jobs.handle import Handle
from holdfast.stores.requests import ClaimRequest, JobFilter
from holdfast.testing.database import Clock, Crashes
from holdfast.worker.executor import Handler
from holdfast.worker.maintenance import feed
from holdfast.worker.options import TickOptions, TickSummary
from holdfast.worker.shutdown import Ended, Stop
from holdfast.worker.threads import Threads
from holdfast.worker.tick import Tick

R = TypeVar("R")

PAGE = 1_000
# A test may move the clock while a job runs; its lease must not expire.
LEASE = 366 * 86_400.0
IDLE = 0.1
WAITING = (State.QUEUED, State.RETRY_WAITING)

Handlers = Mapping[str, Handler]


class Runner:
    """Runs jobs and records the exceptions of their handlers."""

    def __init__(self, app: App, clock: Clock, timeout: float | None, crashes: Crashes) -> None:
        self._app = app
        self._crashes = crashes
        self._clock = clock
        self._timeout = timeout
        # The store has only the text of an error; a test needs the exception.
        self._raised: dict[tuple[str, int], BaseException] = {}

    # --- all jobs that are due ---

    async def drain(self, queues: Sequence[str] | None, limit: int, concurrency: int) -> Drained:
        loop = asyncio.get_running_loop()
        end = None if self._timeout is None else loop.time() + self._timeout
        taken: list[str] = []
        async with self._handlers(concurrency) as handlers:
            # The first tick always runs, for its maintenance tasks: promote, expire, release.
            ticks, waiting = 0, await self._queues(handlers)
            while ticks == 0 or waiting:
                left = None if end is None else max(0.0, end - loop.time())
                # A running job may wait for a job that it enqueues into a queue that is empty now.
                served = list(dict.fromkeys([*waiting, *self._own_queues()])) if queues is None else queues
                # One more than the limit, which shows that the limit was exceeded.
                summary = await self._tick(handlers, limit + 1 - len(taken), served, concurrency, left)
                taken += summary.ids
                if len(taken) > limit:
                    raise NeverIdle(limit, [job.kind for job in await self._taken(taken)])
                ticks += 1
                if ticks > 1 and not summary.taken:
                    break
                store = session_of(self._app).store
                await feed(store, tenant=EVERY_TENANT)  # events of these jobs may create jobs
                await store.arun(store.workflows.fire_callbacks(PAGE, EVERY_TENANT))
                waiting = await self._queues(handlers, queues, due=True)
        return await self._report(taken)

    async def _queues(
        self, handlers: Handlers, among: Sequence[str] | None = None, *, due: bool = False
    ) -> Sequence[str]:
        """Return the queues with waiting jobs of declared kinds, the one with the oldest job first."""
        waiting = [job for job in await self._jobs(*WAITING) if job.kind in handlers]
        if due:
            waiting = [job for job in waiting if job.due_at is None or job.due_at <= self._clock.now]
        queues = dict.fromkeys(job.queue for job in sorted(waiting, key=lambda job: job.position))
        return [queue for queue in queues if among is None or queue in among]

    def _own_queues(self) -> list[str]:
        return sorted(queues_of(self._app))

    async def _report(self, taken: Sequence[str]) -> Drained:
        by_id = {job.id: job for job in await self._taken(taken)}
        jobs = [by_id[job_id] for job_id in dict.fromkeys(taken)]
        retried = {job.retry_of for job in jobs}  # the outcome is that of the retry, which is another job
        failures = [await self._failure(job) for job in jobs if _failed(job) and job.id not in retried]
        return Drained(tuple(jobs), len(taken), tuple(failures))

    async def _failure(self, job: Job) -> Failure:
        store = session_of(self._app).store
        attempts = await store.arun(store.jobs.attempts(job.id, job.tenant))
        error = self._raised.get((job.id, job.attempt))
        return Failure(job, None if isinstance(error, Ended) else error, attempts[-1].traceback)

    # --- one job ---

    async def run(self, handle: Handle[R]) -> R:
        """Run one attempt of this job now. Return its result, or raise the exception of its handler."""
        job = await handle.aget()
        if job.state.finished:
            return await handle.aresult()
        async with self._handlers(1) as handlers:
            if job.kind not in handlers:
                raise NotFound(f"this app declares no job {job.kind!r}", code="unknown_kind")
            if job.due_at is not None:
                await handle.areschedule(reason="run by a test")
            only, crashed = {job.kind: handlers[job.kind]}, -1
            while crashed < len(self._crashes.happened):  # a job that lost its worker starts again
                crashed = len(self._crashes.happened)
                async with self._others_held_back(job):
                    await self._tick(only, 1, [job.queue], 1, self._timeout)
        return await self._result(handle, job.attempt)

    async def _result(self, handle: Handle[R], before: int) -> R:
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
        # The error is text of another process, or an exception that must not end the test run, such as SystemExit.
        failure = await self._failure(job)
        failed = JobFailed(str(failure))
        if failure.traceback:
            failed.add_note(failure.traceback)
        raise failed from failure.error

    @asynccontextmanager
    async def _others_held_back(self, job: Job) -> AsyncIterator[None]:
        """Make the job the first in its queue: claim the other jobs of its kind meanwhile, and release them unchanged.

        A claim takes the first jobs of a queue; it cannot name one.
        """
        store = session_of(self._app).store
        while await store.arun(store.leases.promote(PAGE)) == PAGE:
            pass  # otherwise the tick would promote jobs, which could be ahead of it
        same_kind = JobFilter(tenant=EVERY_TENANT, state=State.QUEUED, kind=job.kind, queue=job.queue, limit=2)
        if [queued.id for queued in await store.arun(store.jobs.list(same_kind))] == [job.id]:
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

    # --- shared ---

    @asynccontextmanager
    async def _handlers(self, concurrency: int) -> AsyncIterator[Handlers]:
        reached = partial(self._crashes.reached, session_of(self._app).store)
        await asyncio.to_thread(self._app.payload_rules._sync_declarations, EVERY_TENANT)
        tools = handler_tools(self._app, EVERY_TENANT, concurrency, Threads(idle_for=IDLE), reached)
        try:
            yield {kind: self._recording(handler) for kind, handler in tools.handlers(all_kinds_of(self._app)).items()}
        finally:
            await tools.aclose()

    def _recording(self, handler: Handler) -> Handler:
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
        session = session_of(self._app)
        options = TickOptions.of(limit, queues=queues, concurrency=concurrency, timeout=timeout, lease=LEASE)
        # Without jitter: a retry waits for the full backoff.
        tasks = (scheduler_of(self._app).maintenance_task(EVERY_TENANT, 0),)
        tick = Tick(session.store, handlers, options, extra_tasks=tasks, draw=lambda: 1.0)
        crashed, self._crashes.abandon = len(self._crashes.happened), tick.abandon
        try:
            summary = await tick.run()
        finally:
            self._crashes.abandon = None
        if len(self._crashes.happened) > crashed:
            store = session.store
            await store.arun(store.leases.recover())  # no other worker does, and the job must start again
        if summary.handed_back or timeout == 0:
            running = [job.kind for job in await self._taken(summary.ids) if not job.state.finished]
            raise WaitTimeout(
                f"not done after {self._timeout:g} s; released: {', '.join(running) or 'no job'}",
                fix="If a job waits for another, pass a higher concurrency to drain, or a longer timeout to the kit.",
            )
        return summary

    async def _taken(self, ids: Iterable[str]) -> list[Job]:
        """Return the jobs with these ids, in this order and as often."""
        by_id = {job.id: job for job in await self._jobs()}
        return [by_id[job_id] for job_id in ids]

    async def _jobs(self, *states: State) -> list[Job]:
        store = session_of(self._app).store
        jobs: list[Job] = []
        for state in states or (None,):
            filters = JobFilter(tenant=EVERY_TENANT, state=state, limit=PAGE)
            while page := await store.arun(store.jobs.list(filters)):
                jobs += page
                filters = replace(filters, before=page[-1].id)
        return jobs


def _failed(job: Job) -> bool:
    """Whether the last attempt failed. A job that requested another attempt itself (``RetryLater``) has not failed."""
    if job.error_code is None or job.state in (State.SUCCEEDED, State.CANCELLED):
        return False
    return job.state.finished or job.error_code != "retry_asked"


@dataclass(frozen=True, slots=True)
class Failure:
    """A job that failed. ``error`` is the exception of its handler; None if it was raised in another process."""

    job: Job
    error: BaseException | None = field(repr=False)
    traceback: str | None = field(repr=False)

    def __str__(self) -> str:
        job = self.job
        tries = f"{job.attempt} attempt{'s' if job.attempt > 1 else ''}"
        return f"{job.kind} {job.id} is {job.state} after {tries}: {job.error_code}: {job.error_message}"


@dataclass(frozen=True, slots=True)
class Drained:
    """The report of a drain: each job once, in its current state, in the order in which they started."""

    jobs: tuple[Job, ...]
    attempts: int
    failures: tuple[Failure, ...] = ()

    def __repr__(self) -> str:
        states = ", ".join(f"{count} {state}" for state, count in self.states.items())
        return f"<Drained {len(self.jobs)} jobs in {self.attempts} attempts: {states or 'nothing to do'}>"

    @property
    def states(self) -> dict[State, int]:
        """The number of jobs per state: ``{"succeeded": 3}``."""
        return dict(Counter(job.state for job in self.jobs))


class JobsFailed(JobFailed):
    """Jobs failed in a drain. ``failures`` has each of them; ``report`` is the complete report."""

    default_code = "jobs_failed"

    def __init__(self, report: Drained) -> None:
        many = len(report.failures)
        super().__init__(
            f"{many} job{'s' if many > 1 else ''} failed",
            fix="If that is expected, use drain(check=False).",
        )
        self.report = report
        self.failures = report.failures

    def __str__(self) -> str:
        return "\n\n".join([super().__str__(), *self._details(self.failures)])

    def _details(self, failures: Sequence[Failure]) -> Iterable[str]:
        for failure in failures:
            yield str(failure)
            # Python prints the traceback of the cause itself.
            if failure.traceback and (failure.error is None or failure.error is not self.__cause__):
                yield textwrap.indent(failure.traceback.rstrip(), "  ")


class ReplayFailed(JobFailed):
    """Recorded histories differ from what their handlers do now. ``report`` has all results."""

    default_code = "replay_differs"

    def __init__(self, report: ReplayReport) -> None:
        found = report.different
        super().__init__(
            f"{len(found)} of {len(report.results)} histories differ from the code\n" + "\n".join(map(str, found)),
            fix="Restore the order and names of the calls, or guard the change with ctx.patched(…).",
        )
        self.report = report


class NeverIdle(HoldfastError):
    """The drain ran more attempts than its limit."""

    default_code = "never_idle"

    def __init__(self, limit: int, kinds: Iterable[str]) -> None:
        most = ", ".join(f"{kind} ({times})" for kind, times in Counter(kinds).most_common(5))
        super().__init__(
            f"still not idle after {limit} attempts; they were {most}",
            fix="Check for a job that enqueues itself or returns at once. Otherwise pass a higher limit to drain.",
        )


class JobWaits(HoldfastError):
    """The job that was run has no result yet: it sleeps, waits, or was snoozed."""

    default_code = "job_waits"

    def __init__(self, job: Job, reason: str | None) -> None:
        until = f" until {job.due_at}" if job.due_at else ""
        why = f": {reason}" if reason else ""
        super().__init__(f"job {job.id} ({job.kind}) has no result yet, it is {job.state}{until}{why}")
        self.job = job
