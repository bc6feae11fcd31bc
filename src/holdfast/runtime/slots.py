"""The slots of a worker: the jobs it runs now, and how those ended that the store has not heard of yet."""

from __future__ import annotations

import asyncio
import random
import sys
from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import Any

from holdfast.domain.job import Claim
from holdfast.domain.outcome import Outcome, Settled
from holdfast.domain.settlement import Settlement, decide, hand_back
from holdfast.runtime.execution import Handler, charged, execute
from holdfast.runtime.stopping import Stop

# How long a task that was told to stop may take before its slot is given away.
LAST_WORDS = 1.0


class Run:
    """One attempt in its slot. It leaves ``Slots.running`` when it ends, or when it is no longer ours."""

    __slots__ = ("claim", "stop", "task")

    def __init__(self, claim: Claim, stop: Stop) -> None:
        self.claim = claim
        self.stop = stop
        self.task: asyncio.Task[None] | None = None

    def cancel(self, why: str) -> None:
        self.stop.set(why)
        if self.task is not None:
            self.task.cancel(why)


class Slots:
    def __init__(self, handlers: Mapping[str, Handler], ended: Callable[[], None]) -> None:
        self._handlers = handlers
        self._call = ended
        self.running: dict[str, Run] = {}
        self.ended: list[Settlement] = []

    def start(self, claims: Iterable[Claim]) -> None:
        for claim in claims:
            run = Run(claim, Stop(self._handlers[claim.kind].timeout, claim.deadline_at))
            self.running[claim.id] = run
            run.task = _start(self._run(run))

    def take_ended(self, most: int) -> list[Settlement]:
        taken, self.ended = self.ended[:most], self.ended[most:]
        return taken

    async def _run(self, run: Run) -> None:
        claim = run.claim
        outcome: Outcome | Settled
        try:
            outcome = await execute(self._handlers[claim.kind], claim, run.stop)
        except asyncio.CancelledError:
            outcome = charged(self._handed_back(claim), run.stop)
        if self.running.get(claim.id) is not run:
            return  # told to stop because it is no longer ours
        del self.running[claim.id]
        if not isinstance(outcome, Settled):
            self.ended.append(decide(claim, outcome, random.random()))
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
            self.ended.append(decide(run.claim, charged(self._handed_back(run.claim), run.stop), 0.0))
        self.running.clear()
        self._call()

    def _handed_back(self, claim: Claim) -> Outcome:
        return hand_back(claim, at_most_once=self._handlers[claim.kind].at_most_once)


def _start(work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    """A task that begins at once where Python can do that: one that never waits then costs no trip of the loop."""
    loop = asyncio.get_running_loop()
    if sys.version_info >= (3, 12):
        return asyncio.Task(work, loop=loop, eager_start=True)
    return asyncio.Task(work, loop=loop)
