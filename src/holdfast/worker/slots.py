"""The slots of a worker: the jobs that are running, and the results that are not settled yet."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import Any

from holdfast.engine.job import Claim, log_fields
from holdfast.engine.outcome import PLAIN_SUCCESS, Outcome, Settled
from holdfast.engine.settlement import Settlement, hand_back, unreadable
from holdfast.worker.end_hooks import EndReports
from holdfast.worker.executor import Handler, charged, execute
from holdfast.worker.refusals import settlement_of, unusable
from holdfast.worker.shutdown import Stop
from holdfast.worker.task_pool import TaskPool

log = logging.getLogger("holdfast.worker")

# Settlements, and claims, per exchange. A larger exchange costs less per job, up to about this size; by then it holds
# locks for tens of milliseconds.
LARGEST_EXCHANGE = 1_000
# Seconds that a cancelled task may take to end before its slot is freed.
STOP_TIMEOUT = 1.0


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
