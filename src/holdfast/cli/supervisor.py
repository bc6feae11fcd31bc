"""``Supervisor``: keep N worker processes running until they are stopped or done; ``ChildProcess``: one of them.

The supervisor does not import the program that it serves. It spawns each child (``worker_process``), which has its own
lease, and is connected to it by a socket: orders go to the child, reports to the supervisor. If the supervisor ends for
any reason, the socket closes, and the child drains and exits. The plan of a child is sent over the socket too, not as
arguments, because every user of the machine can read those, and a database URL may contain a password.

A child that dies is replaced after a pause, which grows while children die soon after their start, so that a broken
deployment does not cause a storm of processes. The supervisor gives up only if no child ever came up. The first child
starts alone, so that an error of the program is printed once and not N times.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import logging
import signal
import socket
import sys
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import Any, Final, Self

from holdfast.cli.failures import FAILED, USAGE
from holdfast.cli.output import announce
from holdfast.cli.run_worker import STOPPING, STOPPING_NOW, on_signals
from holdfast.errors import HoldfastError
from holdfast.worker.worker import WorkerOptions

# Orders. Signals would not do: a service manager may signal every process of a service too, and a second signal means
# "stop at once". The end of the socket also means STOP.
STOP: Final = b"stop\n"
STOP_NOW: Final = b"now\n"

# Time that a worker may need beyond its grace period: a second for handlers to stop, three for threads that do not, and
# settling.
MARGIN: Final = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Everything a child needs to start.

    ``number`` is the number of its slot, from 1. With ``watch``, it reports the project files that it imports.
    ``listen`` is the descriptor of a socket on which it also serves the API and the dashboard, to ``person``.
    """

    app: str
    url: str | None
    options: WorkerOptions
    program: str
    log_level: str
    as_json: bool
    log_json: bool = False
    metrics_host: str = "127.0.0.1"
    metrics_port: int | None = None
    number: int = 1
    watch: bool = False
    listen: int | None = None
    person: str | None = None

    def to_line(self) -> bytes:
        values = dataclasses.asdict(self)
        del values["options"]["extra_tasks"]  # functions, which cannot be sent; the command line sets none
        return json.dumps(values).encode() + b"\n"

    @classmethod
    def from_line(cls, line: bytes) -> Self:
        values: dict[str, Any] = json.loads(line)
        options = values.pop("options")
        return cls(options=WorkerOptions(**(options | {"queues": tuple(options["queues"])})), **values)


MODULE = "holdfast.cli.worker_process"
MAX_REPORT_SIZE = 16 * 1024 * 1024
LAST_REPORTS_TIMEOUT = 1.0


class ChildProcess:
    """``up`` is set when the child has its app and database, ``done`` when its options (``--burst``) ended it."""

    def __init__(
        self,
        number: int,
        process: asyncio.subprocess.Process,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        on_up: Callable[[], None],
    ) -> None:
        self.number = number
        self.began = time.monotonic()
        self.up = False
        self.done = False
        self.taken = 0
        self.files: frozenset[str] = frozenset()
        self._on_up = on_up
        self._process = process
        self._writer = writer
        self._reading = asyncio.create_task(self._read(reader))

    @classmethod
    async def start(cls, plan: Plan, on_up: Callable[[], None] = lambda: None) -> Self:
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                process = await asyncio.create_subprocess_exec(
                    *(sys.executable, "-m", MODULE, str(theirs.fileno()), plan.app, f"worker-{plan.number}"),
                    stdin=asyncio.subprocess.DEVNULL,
                    pass_fds=(theirs.fileno(), *(() if plan.listen is None else (plan.listen,))),
                    start_new_session=True,  # Ctrl-C goes to the supervisor only, which sends orders
                )
            except OSError:
                ours.close()
                raise
        reader, writer = await asyncio.open_connection(sock=ours, limit=MAX_REPORT_SIZE)
        child = cls(plan.number, process, reader, writer, on_up)
        child.order(plan.to_line())
        return child

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def lived(self) -> float:
        return time.monotonic() - self.began

    def order(self, line: bytes) -> None:
        """Send an order. It waits in the socket until the child reads it; for a child that has ended it is dropped."""
        with contextlib.suppress(OSError, RuntimeError):
            self._writer.write(line)

    def send(self, number: signal.Signals) -> None:
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(number)

    async def ended(self) -> int:
        """Wait until the child has ended and its reports are read; return its exit code."""
        code = await self._process.wait()
        # With a timeout, because a process that it started may still hold the other end of the socket.
        await asyncio.wait({self._reading}, timeout=LAST_REPORTS_TIMEOUT)
        self._reading.cancel()
        self._writer.close()
        return code

    async def _read(self, reader: asyncio.StreamReader) -> None:
        with contextlib.suppress(OSError, ValueError):
            while line := await reader.readline():
                report = json.loads(line)
                self.taken = report.get("taken", self.taken)
                self.done = report.get("done", self.done)
                self.files = frozenset(report.get("files", self.files))
                if report.get("up"):
                    self.up = True
                    self._on_up()


def how_it_ended(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"


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
                async with asyncio.timeout(pause):
                    await self._shutdown.requested.wait()
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
