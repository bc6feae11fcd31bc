"""The bench's story: enqueue one by one, enqueue in bulk, let one worker process drain it, then let jobs trickle in.

It keeps to a queue and a tenant of its own; the worker serves nothing else. Enqueuing is timed here, the rest is
read from the ledger, by the database's clock.
"""

from __future__ import annotations

import asyncio
import random
import sys
import time
from dataclasses import dataclass

from holdfast.app import App
from holdfast.cli.bench.judge import Latency, Rate, drained, picked_up, problems_of
from holdfast.cli.bench.kinds import QUEUE, TARGET, declare
from holdfast.cli.bench.view import View
from holdfast.cli.demo.check import read
from holdfast.cli.supervision.plan import STOP, Plan
from holdfast.cli.supervision.process import ChildProcess, how_it_ended
from holdfast.errors import HoldfastError
from holdfast.kind import Kind
from holdfast.worker.worker import WorkerOptions

SINGLES, BATCH = 500, 500
TRICKLE, PAUSE = 200, (0.005, 0.045)
LOOK = 0.2
PATIENCE = 60.0


@dataclass(frozen=True, slots=True)
class Result:
    """``jobs`` and ``events``: the rows that are there now."""

    single: Rate
    bulk: Rate
    drain: Rate
    pickup: Latency
    jobs: int
    events: int
    problems: list[str]


class Bench:
    def __init__(self, app: App, view: View) -> None:
        self._app = app
        self._view = view
        self._kind: Kind[[int], None] = declare(app)
        self._accepted: list[str] = []

    async def run(self, jobs: int, concurrency: int) -> Result:
        singles = max(1, min(SINGLES, jobs // 10))
        single = self._one_by_one(singles)
        bulk = self._in_bulk(jobs - singles)
        stored = list(self._accepted)
        child = await ChildProcess.start(self._plan(concurrency))
        ending = asyncio.create_task(child.ended())
        try:
            await self._all_ended("drain", ending)
            trickled = await self._trickle()
            await self._all_ended("pick-up", ending)
        finally:
            child.order(STOP)
            await ending
        # Nobody writes any more: what is read now is the end.
        self._view.phase("check", 1)
        reading = read(self._app.store, self._app.client.tenant)
        return Result(
            single,
            bulk,
            drained(stored, reading),
            picked_up(trickled, reading),
            len(reading.jobs),
            len(reading.events),
            problems_of(self._accepted, reading),
        )

    def _one_by_one(self, count: int) -> Rate:
        """Each in a transaction of its own: what a request handler does."""
        self._view.phase("enqueue, one by one", count)
        began = time.perf_counter()
        for number in range(count):
            self._accepted.append(self._kind.enqueue(number).id)
            self._view.done(number + 1)
        return Rate(count, time.perf_counter() - began)

    def _in_bulk(self, count: int) -> Rate:
        self._view.phase("enqueue, in bulk", count)
        began = time.perf_counter()
        for first in range(0, count, BATCH):
            numbers = range(first, min(first + BATCH, count))
            handles = self._app.enqueue_many(self._kind.prepare(number) for number in numbers)
            self._accepted += [handle.id for handle in handles]
            self._view.done(numbers.stop)
        return Rate(count, time.perf_counter() - began)

    async def _trickle(self) -> list[str]:
        """One now and then, to a worker that has nothing else to do: how long until it is begun?"""
        self._view.phase("pick-up", TRICKLE)
        before = len(self._accepted)
        for number in range(TRICKLE):
            self._accepted.append(self._kind.enqueue(number).id)
            self._view.done(number + 1)
            await asyncio.sleep(random.uniform(*PAUSE))
        return self._accepted[before:]

    async def _all_ended(self, phase: str, ending: asyncio.Task[int]) -> None:
        """Returns when every accepted job has ended; the worker must live, and go on, until then."""
        store, total = self._app.store, len(self._accepted)
        if phase == "drain":
            self._view.phase(phase, total)
        ended, deadline = -1, time.monotonic() + PATIENCE
        while ended < total:
            states = store.run(store.verbs.counts(self._app.client.tenant))
            now = sum(count for state, count in states.items() if state.finished)
            if now > ended:
                ended, deadline = now, time.monotonic() + PATIENCE
                if phase == "drain":
                    self._view.done(ended)
            if ending.done():
                raise _failed(f"the worker {how_it_ended(ending.result())}")
            if time.monotonic() > deadline:
                raise _failed(f"no job has ended for {PATIENCE:.0f} s; {total - ended:,} are left")
            if ended < total:
                await asyncio.sleep(LOOK)

    def _plan(self, concurrency: int) -> Plan:
        return Plan(
            app=TARGET,
            url=self._app.store.url,
            options=WorkerOptions(queues=(QUEUE,), tenant=self._app.client.tenant, concurrency=concurrency, grace=5.0),
            program=sys.argv[0],
            log_level="warning",
            as_json=True,
        )


def _failed(why: str) -> HoldfastError:
    return HoldfastError(f"the bench could not be finished: {why}", code="bench_failed")
