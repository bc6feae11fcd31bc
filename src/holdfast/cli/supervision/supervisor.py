"""The supervisor: keeps so many workers alive, each a process of its own, until told to stop or all are done.

A child that dies is replaced, after a pause that grows while children die young, so that a broken deployment does not
turn into a storm of processes. It never gives up on that, with one exception: when no child has come up at all,
waiting does not help. The first child goes first for that reason: its error is shown once, and not N times.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from dataclasses import dataclass, replace

from holdfast.cli.failures import FAILED, USAGE
from holdfast.cli.supervision.plan import Plan
from holdfast.cli.supervision.process import ChildProcess, how_it_ended
from holdfast.cli.supervision.stopping import Stopping
from holdfast.errors import HoldfastError

log = logging.getLogger("holdfast.supervisor")

TRIES = 3
STEADY = 10.0
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 30.0


@dataclass(slots=True)
class Place:
    """One place in the crew, and what its children did, one after another. ``code`` is the last one's exit code."""

    number: int
    jobs: int = 0
    restarts: int = 0
    code: int = 0


@dataclass(frozen=True, slots=True)
class Report:
    """``usage`` when the children could not start because they were asked for something that cannot be had."""

    places: list[Place]
    clean: bool
    usage: bool = False

    @property
    def jobs(self) -> int:
        return sum(place.jobs for place in self.places)

    @property
    def restarts(self) -> int:
        return sum(place.restarts for place in self.places)


def pause_after(deaths: int) -> float:
    """Seconds before the next start, after so many deaths in a row of children that had not lived long."""
    return min(LONGEST_PAUSE, FIRST_PAUSE * 2.0 ** min(max(deaths, 1) - 1, 16))


class Supervisor:
    def __init__(self, plan: Plan, processes: int) -> None:
        self._plan = plan
        self._places = [Place(number) for number in range(1, processes + 1)]
        self._children: dict[int, ChildProcess] = {}
        self._stopping = Stopping(self._children.values, plan.options.grace, quiet=plan.as_json)
        self._came_up = asyncio.Event()

    async def run(self) -> Report:
        self._stopping.listen()
        keeping = [asyncio.create_task(self._keep(self._places[0]))]
        ready = asyncio.create_task(self._came_up.wait())
        await asyncio.wait({*keeping, ready}, return_when=asyncio.FIRST_COMPLETED)
        if self._came_up.is_set() and not self._stopping.asked.is_set():
            keeping += [asyncio.create_task(self._keep(place)) for place in self._places[1:]]
        ready.cancel()
        await asyncio.gather(*keeping)
        self._stopping.over()
        if not self._came_up.is_set() and not self._stopping.asked.is_set():
            return self._gave_up()
        clean = not self._stopping.killed and all(place.code == 0 for place in self._places)
        return Report(self._places, clean)

    def _gave_up(self) -> Report:
        if self._places[0].code == USAGE:
            return Report(self._places, clean=False, usage=True)
        raise HoldfastError(
            f"no worker came up in {TRIES} tries", code="workers_failed", fix="What each of them said is above."
        )

    async def _keep(self, place: Place) -> None:
        """One child after another, until the place needs none."""
        deaths = 0
        while (lived := await self._one_life(place)) is not None:
            deaths = 1 if lived > STEADY else deaths + 1
            if not self._came_up.is_set() and (place.code == USAGE or deaths >= TRIES):
                return
            pause = pause_after(deaths)
            log.warning("the next worker %s starts in %.1f s", place.number, pause)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.asked.wait(), pause)
            place.code = 0  # what matters is how the last one leaves
            if self._stopping.asked.is_set():
                return
            place.restarts += 1

    async def _one_life(self, place: Place) -> float | None:
        """From the start of a child to its end. How long it lived; None if there is no need of another."""
        try:
            child = await ChildProcess.start(replace(self._plan, number=place.number), self._came_up.set)
        except OSError as error:  # no memory for it, or its Python is just being replaced
            log.error("worker %s cannot be started: %s", place.number, error)
            place.code = FAILED
            return 0.0
        log.info("worker %s started with pid %s", place.number, child.pid)
        self._children[place.number] = child
        self._stopping.join(child)
        place.code = await child.ended()
        del self._children[place.number]
        place.jobs += child.taken
        if self._stopping.asked.is_set():
            if not child.up:
                place.code = 0  # however it left, it had nothing in its hands
            return None
        if place.code == 0 and child.done:
            return None
        log.warning("worker %s (pid %s) %s", place.number, child.pid, how_it_ended(place.code))
        return child.lived
