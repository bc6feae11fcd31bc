"""``ChildProcess``: a child as its supervisor sees it, the plan it starts with, and the orders it receives.

The plan is sent over the socket and not as arguments, because every user of the machine can read those, and a database
URL may contain a password.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import signal
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Self

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


MODULE = "holdfast.cli.supervisor.worker_process"
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
