"""The slots of a worker: the jobs it runs now, and how those ended that the store has not heard of yet."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import Any

from holdfast.engine.job import Claim, log_fields
from holdfast.engine.outcome import WELL, Outcome, Settled
from holdfast.engine.settlement import Settlement, hand_back, unreadable
from holdfast.worker.end_hooks import EndReports
from holdfast.worker.executor import Handler, charged, execute
from holdfast.worker.refusals import settlement_of, unusable
from holdfast.worker.shutdown import Stop
from holdfast.worker.task_pool import TaskPool

log = logging.getLogger("holdfast.worker")

# How long a task that was told to stop may take before its slot is given away.
LAST_WORDS = 1.0


class Run:
    """One attempt in its slot. It leaves ``Slots.running`` when it ends, or when it is no longer ours. ``stop`` is
    there once it has begun, or was told not to: what many have at once the collector looks at again and again."""

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
    def __init__(self, handlers: Mapping[str, Handler], ended: Callable[[], None], reports: EndReports) -> None:
        self._handlers = handlers
        self._call = ended
        self._reports = reports
        self._hands = TaskPool(self._begin, self._over)
        self.running: dict[str, Run] = {}
        self.ended: list[Settlement] = []
        self.unmovable: set[str] = set()
        """Jobs under this worker's lease whose rows the store refuses to change: they are left to it."""

    def start(self, claims: Iterable[Claim]) -> None:
        runs = []
        for claim in claims:
            handler = self._handlers.get(claim.kind)
            if handler is None or claim.unreadable is not None:
                self._bury(claim)
                continue
            run = self.running[claim.id] = Run(claim, handler)
            runs.append(run)
        self._hands.take(runs)

    def _bury(self, claim: Claim) -> None:
        """A row that nothing can be made of ends as a dead letter, and holds up no other."""
        outcome = unreadable(claim)
        log.error("Job %s does not run: %s", claim.id, outcome.message, extra=log_fields(claim))
        self._reports.expect(claim)
        self.ended.append(settlement_of(claim, outcome, 0.0))
        self._call()

    def decline(self, taken: Iterable[tuple[str, int]]) -> None:
        """Hand back jobs, each with its attempt, that were taken and never begun: another will take them."""
        reason = "never_begun"
        self.ended += [Settlement(job_id, attempt, "snooze", note={"reason": reason}) for job_id, attempt in taken]

    def take_ended(self, most: int) -> list[Settlement]:
        taken, self.ended = self.ended[:most], self.ended[most:]
        return taken

    def _begin(self, run: Run, task: asyncio.Task[None]) -> Coroutine[Any, Any, Outcome | Settled] | None:
        if run.stop is not None:
            return None  # told to stop before it had begun
        return execute(run.handler, run.claim, run.begin(task))

    def _over(self, run: Run, outcome: Outcome | Settled | Exception | None) -> None:
        claim = run.claim
        if self.running.get(claim.id) is not run:
            return  # told to stop because it is no longer ours
        del self.running[claim.id]
        if outcome is None:
            outcome = run.handed_back()
        elif isinstance(outcome, Exception):  # nobody can have meant this: the job must end all the same
            log.error("The attempt of job %s failed unexpectedly", claim.id, exc_info=outcome)
            outcome = unusable(outcome)
        if run.handler.end_hooks is not None:
            (self._reports.succeeded if isinstance(outcome, Settled) else self._reports.expect)(claim)
        if not isinstance(outcome, Settled):
            self.ended.append(settlement_of(claim, outcome, 0.0 if outcome is WELL else random.random()))
        self._call()

    def forget(self, ids: Iterable[str], why: str) -> int:
        """These jobs are no longer ours: stop them, and never settle how they end."""
        count = 0
        for job_id in ids:
            run = self.running.pop(job_id, None)
            if run is not None:
                count += 1
                run.cancel(why)
        return count

    async def hand_back(self) -> None:
        """Stop what is running. A thread that will not end goes on; the job itself is somebody else's to run."""
        for run in self.running.values():
            run.cancel("worker_stopped")
        tasks = {run.task for run in self.running.values() if run.task is not None}
        if tasks:
            await asyncio.wait(tasks, timeout=LAST_WORDS)
        for run in list(self.running.values()):
            if run.task is None:
                self.decline([(run.claim.id, run.claim.attempt)])
            else:
                self._reports.expect(run.claim)
                self.ended.append(settlement_of(run.claim, run.handed_back(), 0.0))
        self.running.clear()
        self._call()
