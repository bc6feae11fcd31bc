"""``Supervisor``: keep N worker processes running until they are stopped or done.

A child that dies is replaced after a pause, which grows while children die soon after their start, so that a broken
deployment does not cause a storm of processes. The supervisor gives up only if no child ever came up. The first child
starts alone, so that an error of the program is printed once and not N times.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace

from holdfast.cli.failures import FAILED, USAGE
from holdfast.cli.output import announce
from holdfast.cli.run_worker import STOPPING, STOPPING_NOW, on_signals
from holdfast.cli.supervisor.process import MARGIN, STOP, STOP_NOW, ChildProcess, Plan, how_it_ended
from holdfast.errors import HoldfastError

log = logging.getLogger("holdfast.supervisor")


class Shutdown:
    """Turns signals to the supervisor into orders to its children. ``killed`` counts the children that were killed."""

    def __init__(self, children: Callable[[], Collection[ChildProcess]], grace: float, *, quiet: bool) -> None:
        self.requested = asyncio.Event()
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
            self._say(STOPPING_NOW)
        else:
            self._kill()

    def on_hangup(self) -> None:
        if not self._signals:
            self.on_signal()

    def stop(self) -> None:
        """Let the children drain. Those that do not end in time are killed."""
        self.requested.set()
        self._give(STOP, self._grace + MARGIN)
        if self._signals:  # after the orders: writing to stderr may block
            self._say(STOPPING)

    def join(self, child: ChildProcess) -> None:
        """Send the current order to a child that was started while it was given."""
        if self.requested.is_set():
            child.order(self._order)

    def over(self) -> None:
        """Cancel the deadline: all children have ended."""
        if self._deadline is not None:
            self._deadline.cancel()

    def _give(self, order: bytes, timeout: float) -> None:
        self._order = order
        for child in self._children():
            child.order(self._order)
        self.over()
        self._deadline = asyncio.get_running_loop().call_later(timeout, self._kill)

    def _kill(self) -> None:
        for child in self._children():
            log.error("Worker %s (pid %s) did not stop in time; killing it", child.number, child.pid)
            self.killed += 1
            child.send(signal.SIGKILL)

    def _say(self, message: str) -> None:
        if not self._quiet:
            announce(message)


MAX_START_ATTEMPTS = 3
# A child that lived longer than this many seconds resets the pause.
STABLE_AFTER = 10.0
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 30.0


@dataclass(slots=True)
class Slot:
    """One of the N positions, with totals over its successive children. ``code`` is the exit code of the last one."""

    number: int
    jobs: int = 0
    restarts: int = 0
    code: int = 0


@dataclass(frozen=True, slots=True)
class Report:
    """The result of a supervisor. ``usage`` is set if the children could not start because of a wrong argument."""

    slots: list[Slot]
    clean: bool
    usage: bool = False

    @property
    def jobs(self) -> int:
        return sum(slot.jobs for slot in self.slots)

    @property
    def restarts(self) -> int:
        return sum(slot.restarts for slot in self.slots)


def pause_after(deaths: int) -> float:
    """Return the seconds to wait before a restart, after this many successive early deaths."""
    return min(LONGEST_PAUSE, FIRST_PAUSE * 2.0 ** min(max(deaths, 1) - 1, 16))


class Supervisor:
    """Keeps ``processes`` children running."""

    def __init__(self, plan: Plan, processes: int) -> None:
        self._plan = plan
        self._slots = [Slot(number) for number in range(1, processes + 1)]
        self._children: dict[int, ChildProcess] = {}
        self._shutdown = Shutdown(self._children.values, plan.options.grace, quiet=plan.as_json)
        self._came_up = asyncio.Event()

    async def run(self) -> Report:
        self._shutdown.listen()
        tasks = [asyncio.create_task(self._keep_running(self._slots[0]))]
        ready = asyncio.create_task(self._came_up.wait())
        await asyncio.wait({*tasks, ready}, return_when=asyncio.FIRST_COMPLETED)
        if self._came_up.is_set() and not self._shutdown.requested.is_set():
            tasks += [asyncio.create_task(self._keep_running(slot)) for slot in self._slots[1:]]
        ready.cancel()
        await asyncio.gather(*tasks)
        self._shutdown.over()
        if not self._came_up.is_set() and not self._shutdown.requested.is_set():
            return self._gave_up()
        clean = not self._shutdown.killed and all(slot.code == 0 for slot in self._slots)
        return Report(self._slots, clean)

    def _gave_up(self) -> Report:
        if self._slots[0].code == USAGE:
            return Report(self._slots, clean=False, usage=True)
        raise HoldfastError(
            f"no worker started in {MAX_START_ATTEMPTS} attempts",
            code="workers_failed",
            fix="Read the workers' output above.",
        )

    async def _keep_running(self, slot: Slot) -> None:
        """Run one child after another in the slot, until it needs none."""
        deaths = 0
        while (lived := await self._run_child(slot)) is not None:
            deaths = 1 if lived > STABLE_AFTER else deaths + 1
            if not self._came_up.is_set() and (slot.code == USAGE or deaths >= MAX_START_ATTEMPTS):
                return
            pause = pause_after(deaths)
            log.warning("Restarting worker %s in %.1f s", slot.number, pause)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._shutdown.requested.wait(), pause)
            slot.code = 0  # only the exit code of the last child counts
            if self._shutdown.requested.is_set():
                return
            slot.restarts += 1

    async def _run_child(self, slot: Slot) -> float | None:
        """Run one child to its end. Return how long it lived; None if it needs no successor."""
        try:
            child = await ChildProcess.start(replace(self._plan, number=slot.number), self._came_up.set)
        except OSError as error:  # for example no memory, or Python is being upgraded
            log.error("Worker %s cannot be started: %s", slot.number, error)
            slot.code = FAILED
            return 0.0
        log.info("Worker %s started with pid %s", slot.number, child.pid)
        self._children[slot.number] = child
        self._shutdown.join(child)
        slot.code = await child.ended()
        del self._children[slot.number]
        slot.jobs += child.taken
        if self._shutdown.requested.is_set():
            if not child.up:
                slot.code = 0  # it had claimed no job, so its exit code does not matter
            return None
        if slot.code == 0 and child.done:
            return None
        log.warning("Worker %s (pid %s) %s", slot.number, child.pid, how_it_ended(slot.code))
        return child.lived
