"""The slots of a worker: the jobs that are running, and the results that are not settled yet."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from heapq import heappop, heappush
from typing import Any

from holdfast.engine.job import Claim, log_fields
from holdfast.engine.outcome import PLAIN_SUCCESS, Failed, Outcome, Settled
from holdfast.engine.settlement import Settlement, decide, hand_back, unreadable
from holdfast.telemetry.tracebacks import type_name
from holdfast.worker.end_hooks import EndReports
from holdfast.worker.executor import Handler, charged, execute
from holdfast.worker.shutdown import Stop
from holdfast.worker.task_pool import TaskPool

log = logging.getLogger("holdfast.worker")

# Settlements, and claims, per exchange. A larger exchange costs less per job, up to about this size; by then it holds
# locks for tens of milliseconds.
LARGEST_EXCHANGE = 1_000
# Seconds that a cancelled task may take to end before its slot is freed.
STOP_TIMEOUT = 1.0
# A worker remembers the retries that are due within this time, in seconds, by steps of that many.
SOON, STEP = 5.0, 0.02


def settlement_of(claim: Claim, outcome: Outcome, random01: float) -> Settlement:
    """``decide``, but never raises: an outcome that cannot be turned into a settlement becomes a failure."""
    try:
        return decide(claim, outcome, random01)
    except Exception as error:
        log.exception("The result of job %s cannot be recorded", claim.id)
        return decide(claim, unusable(error), random01)


def unusable(error: BaseException) -> Failed:
    return Failed("outcome_refused", f"the end of the attempt cannot be recorded: {type_name(error)}", final=True)


class Run:
    """One attempt in its slot. It leaves ``Slots.running`` when it ends, or when this worker no longer holds the job.

    ``stop`` is created when the attempt starts or is cancelled, not before: the garbage collector scans objects that
    many waiting runs have again and again.
    """

    __slots__ = ("claim", "handler", "stop", "task")

    def __init__(self, claim: Claim, handler: Handler) -> None:
        self.claim = claim
        self.handler = handler
        self.stop: Stop | None = None
        self.task: asyncio.Task[None] | None = None

    def begin(self, task: asyncio.Task[None]) -> Stop:
        self.task = task
        self.stop = Stop(self.handler.timeout, self.claim.deadline_at)
        return self.stop

    def cancel(self, why: str) -> None:
        if self.stop is None:
            self.stop = Stop()
        self.stop.set(why)
        if self.task is not None:
            self.task.cancel(why)

    def handed_back(self) -> Outcome:
        outcome = hand_back(self.claim, at_most_once=self.handler.at_most_once)
        return outcome if self.stop is None else charged(outcome, self.stop)


class RetryTimer:
    """Makes the jobs of a worker ready as soon as they are due again. Maintenance does it for all jobs, but only once
    or twice a second. ``then`` is called when there were any."""

    def __init__(self, promote: Callable[[], Awaitable[int]], then: Callable[[], None]) -> None:
        self._promote = promote
        self._then = then
        self._times: list[int] = []  # a heap, in steps of the loop's clock
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None

    def expect(self, settled: Iterable[Settlement]) -> None:
        delays = {item.delay for item in settled if item.ending in ("retry", "snooze") and item.delay < SOON}
        now = asyncio.get_running_loop().time()
        for step in {int((now + delay) / STEP) + 1 for delay in delays}.difference(self._times):
            heappush(self._times, step)
        if delays:
            self._start()

    def stop(self) -> None:
        self._times.clear()
        for each in (self._timer, self._task):
            if each is not None:
                each.cancel()

    def _start(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._times and (self._task is None or self._task.done()):
            self._timer = asyncio.get_running_loop().call_at(self._times[0] * STEP, self._fire)

    def _fire(self) -> None:
        step = int(asyncio.get_running_loop().time() / STEP)
        while self._times and self._times[0] <= step:
            heappop(self._times)
        self._task = asyncio.create_task(self._run())
        self._task.add_done_callback(lambda _: self._start())

    async def _run(self) -> None:
        if await self._promote():
            self._then()


class Slots:
    """``on_end`` is called when there is a new result to settle."""

    def __init__(self, handlers: Mapping[str, Handler], on_end: Callable[[], None], reports: EndReports) -> None:
        self._handlers = handlers
        self._on_end = on_end
        self._reports = reports
        self._tasks = TaskPool(self._begin, self._finish)
        self.running: dict[str, Run] = {}
        self.ended: list[Settlement] = []
        self.unmovable: set[str] = set()
        """Jobs under this worker's lease whose rows the database refuses to change: they stay under the lease."""

    def start(self, claims: Iterable[Claim]) -> None:
        runs = []
        for claim in claims:
            handler = self._handlers.get(claim.kind)
            if handler is None or claim.unreadable is not None:
                self._dead_letter(claim)
                continue
            run = self.running[claim.id] = Run(claim, handler)
            runs.append(run)
        self._tasks.add(runs)

    def _dead_letter(self, claim: Claim) -> None:
        """End a job that cannot be read or has no handler, so that it does not hold up the others."""
        outcome = unreadable(claim)
        log.error("Job %s does not run: %s", claim.id, outcome.message, extra=log_fields(claim))
        self._reports.expect(claim)
        self.ended.append(settlement_of(claim, outcome, 0.0))
        self._on_end()

    def return_unstarted(self, jobs: Iterable[tuple[str, int]]) -> None:
        """Return jobs, each with its attempt, to the queue that were claimed and never started."""
        reason = "never_begun"
        self.ended += [Settlement(job_id, attempt, "snooze", note={"reason": reason}) for job_id, attempt in jobs]

    def take_ended(self) -> list[Settlement]:
        """Remove the results of one exchange and return them."""
        batch, self.ended = self.ended[:LARGEST_EXCHANGE], self.ended[LARGEST_EXCHANGE:]
        return batch

    def _begin(self, run: Run, task: asyncio.Task[None]) -> Coroutine[Any, Any, Outcome | Settled] | None:
        if run.stop is not None:
            return None  # cancelled before it started
        return execute(run.handler, run.claim, run.begin(task))

    def _finish(self, run: Run, outcome: Outcome | Settled | Exception | None) -> None:
        claim = run.claim
        if self.running.get(claim.id) is not run:
            return  # cancelled, because this worker no longer holds the job
        del self.running[claim.id]
        if outcome is None:
            outcome = run.handed_back()
        elif isinstance(outcome, Exception):  # a defect outside the handler: the job must end all the same
            log.error("The attempt of job %s failed unexpectedly", claim.id, exc_info=outcome)
            outcome = unusable(outcome)
        if run.handler.end_hooks is not None:
            (self._reports.succeeded if isinstance(outcome, Settled) else self._reports.expect)(claim)
        if not isinstance(outcome, Settled):
            self.ended.append(settlement_of(claim, outcome, 0.0 if outcome is PLAIN_SUCCESS else random.random()))
        self._on_end()

    def forget(self, ids: Iterable[str], why: str) -> int:
        """Stop jobs that this worker no longer holds, and never settle them. Returns how many were running."""
        count = 0
        for job_id in ids:
            run = self.running.pop(job_id, None)
            if run is not None:
                count += 1
                run.cancel(why)
        return count

    async def hand_back(self) -> None:
        """Stop the running jobs and return them to the queue. A thread that does not end keeps running."""
        for run in self.running.values():
            run.cancel("worker_stopped")
        tasks = {run.task for run in self.running.values() if run.task is not None}
        if tasks:
            await asyncio.wait(tasks, timeout=STOP_TIMEOUT)
        for run in list(self.running.values()):
            if run.task is None:
                self.return_unstarted([(run.claim.id, run.claim.attempt)])
            else:
                self._reports.expect(run.claim)
                self.ended.append(settlement_of(run.claim, run.handed_back(), 0.0))
        self.running.clear()
        self._on_end()
