"""One child process, seen from its supervisor."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import socket
import sys
import time
from collections.abc import Callable
from typing import Self

from holdfast.cli.supervision.plan import Plan

MODULE = "holdfast.cli.supervision.child"
LONGEST_REPORT = 16 * 1024 * 1024
LAST_REPORTS = 1.0


class ChildProcess:
    """``up`` when it has its app and its database; ``done`` when it ended because its options said so."""

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
                    start_new_session=True,  # Ctrl-C is for the supervisor, which then says what is to be done
                )
            except OSError:
                ours.close()
                raise
        reader, writer = await asyncio.open_connection(sock=ours, limit=LONGEST_REPORT)
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
        """Orders wait in the socket until they are read; one for a child that is gone is not missed by anybody."""
        with contextlib.suppress(OSError, RuntimeError):
            self._writer.write(line)

    def send(self, number: signal.Signals) -> None:
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(number)

    async def ended(self) -> int:
        """Its exit code, when it has ended and all its reports have been read."""
        code = await self._process.wait()
        # Somebody it has left behind may still hold the other end.
        await asyncio.wait({self._reading}, timeout=LAST_REPORTS)
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
