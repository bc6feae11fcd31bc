"""Keep n workers alive, stop them.

The supervisor: keeps so many workers alive, each a process of its own, until told to stop or all are done.

A child that dies is replaced, after a pause that grows while children die young, so that a broken deployment does not
turn into a storm of processes. It never gives up on that, with one exception: when no child has come up at all,
waiting does not help. The first child goes first for that reason: its error is shown once, and not N times.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace

from holdfast.cli.failures import FAILED, USAGE
from holdfast.cli.output import say
from holdfast.cli.run_worker import AT_ONCE, ONCE_MORE, on_signals
from holdfast.cli.supervisor.process import MARGIN, STOP, STOP_NOW, ChildProcess, Plan, how_it_ended
from holdfast.errors import HoldfastError

log = logging.getLogger("holdfast.supervisor")


class Stopping:
    """Signals to the supervisor, turned into orders. ``killed`` counts the children that had to be."""

    def __init__(self, children: Callable[[], Collection[ChildProcess]], grace: float, *, quiet: bool) -> None:
        self.asked = asyncio.Event()
        self.killed = 0
        self._children = children
        self._grace = grace
        self._quiet = quiet
        self._signals = 0
        self._order = b""
        self._deadline: asyncio.TimerHandle | None = None

    def listen(self) -> None:
        on_signals(self.on_signal, self.on_hangup)

    def on_signal(self) -> None:
        self._signals += 1
        if self._signals == 1:
            self.stop()
        elif self._signals == 2:
            self._give(STOP_NOW, MARGIN)
            self._say(AT_ONCE)
        else:
            self._kill()

    def on_hangup(self) -> None:
        if not self._signals:
            self.on_signal()

    def stop(self) -> None:
        """Let them drain; what has not left by then is killed."""
        self.asked.set()
        self._give(STOP, self._grace + MARGIN)
        if self._signals:  # not before: whoever reads the messages may keep us waiting
            self._say(ONCE_MORE)

    def join(self, child: ChildProcess) -> None:
        """For a child that was started while the order was given."""
        if self.asked.is_set():
            child.order(self._order)

    def over(self) -> None:
        """All have left."""
        if self._deadline is not None:
            self._deadline.cancel()

    def _give(self, order: bytes, patience: float) -> None:
        self._order = order
        for child in self._children():
            child.order(self._order)
        self.over()
        self._deadline = asyncio.get_running_loop().call_later(patience, self._kill)

    def _kill(self) -> None:
        for child in self._children():
            log.error("Worker %s (pid %s) did not stop in time; killing it", child.number, child.pid)
            self.killed += 1
            child.send(signal.SIGKILL)

    def _say(self, message: str) -> None:
        if not self._quiet:
            say(message)


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
            f"no worker started in {TRIES} attempts", code="workers_failed", fix="Read the workers' output above."
        )

    async def _keep(self, place: Place) -> None:
        """One child after another, until the place needs none."""
        deaths = 0
        while (lived := await self._one_life(place)) is not None:
            deaths = 1 if lived > STEADY else deaths + 1
            if not self._came_up.is_set() and (place.code == USAGE or deaths >= TRIES):
                return
            pause = pause_after(deaths)
            log.warning("Restarting worker %s in %.1f s", place.number, pause)
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
            log.error("Worker %s cannot be started: %s", place.number, error)
            place.code = FAILED
            return 0.0
        log.info("Worker %s started with pid %s", place.number, child.pid)
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
        log.warning("Worker %s (pid %s) %s", place.number, child.pid, how_it_ended(place.code))
        return child.lived
