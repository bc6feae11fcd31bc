"""The driver's side of the connection to the harness, shared by all drivers in Python.

A driver is started as ``driver.py COMMAND URL OPTIONS`` in the environment of its peer, so this module uses only the
standard library. It reports events as JSON lines on stdout and receives ``go``, ``count`` and ``stop`` on stdin. The
harness does all checks; a driver only reports which job ran when.
"""

from __future__ import annotations

import asyncio
import json
import sys
import threading
import time
from array import array
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

clock = time.monotonic_ns

EVERY = 500  # jobs between two lines of progress


def say(event: str, **facts: Any) -> None:
    sys.stdout.write(json.dumps({"event": event, **facts}) + "\n")
    sys.stdout.flush()


class Record:
    """Records which job ran when, in memory until the measurement is over."""

    def __init__(self, path: str | None) -> None:
        self.path = path
        self.numbers = array("q")
        self.times = array("q")

    def ran(self, number: int) -> None:
        self.times.append(clock())
        self.numbers.append(number)
        if len(self.numbers) % EVERY == 0:
            say("progress", ran=len(self.numbers))

    def write(self) -> None:
        if self.path is not None:
            lines = "\n".join(f"{number} {at}" for number, at in zip(self.numbers, self.times, strict=True))
            Path(self.path).write_text(lines + "\n")


class Link:
    """One run of one command: its arguments, its record, and the two moments that the harness decides."""

    def __init__(self, argv: list[str]) -> None:
        self.command, self.url = argv[1], argv[2]
        self.options: dict[str, Any] = json.loads(argv[3]) if len(argv) > 3 else {}
        self.record = Record(self.options.get("record"))
        self._go = threading.Event()
        self._stop = threading.Event()
        threading.Thread(target=self._listen, name="link", daemon=True).start()

    def _listen(self) -> None:
        for line in sys.stdin:
            word = line.strip()
            if word == "go":
                self._go.set()
            elif word == "count":
                say("count", ran=len(self.record.numbers))
            elif word == "stop":
                break
        self._go.set()
        self._stop.set()  # also when the harness is gone

    def ready(self) -> None:
        """Report that everything is imported and connected, and wait for the start of the clock."""
        say("ready")
        self._go.wait()
        say("begun", at=clock())

    def wait_for_stop(self) -> None:
        self._stop.wait()

    async def aready(self) -> None:
        await asyncio.to_thread(self.ready)

    async def await_stop(self) -> None:
        await asyncio.to_thread(self._stop.wait)

    def timed(self, work: Callable[[], Any]) -> None:
        self.ready()
        start = clock()
        work()
        say("done", seconds=(clock() - start) / 1e9)

    async def atimed(self, work: Callable[[], Awaitable[Any]]) -> None:
        await self.aready()
        start = clock()
        await work()
        say("done", seconds=(clock() - start) / 1e9)

    def paced(self, enqueue: Callable[[int], Any]) -> None:
        """Enqueue at fixed intervals, and record when each call returned."""
        self.ready()
        due = time.monotonic()
        took = []
        for number in self.numbers():
            called = clock()
            enqueue(number)
            self.record.ran(number)
            took.append(clock() - called)
            due += self.options["every"]
            time.sleep(max(0.0, due - time.monotonic()))
        self.finish(call_ms=sorted(took)[len(took) // 2] / 1e6)

    def numbers(self) -> range:
        first = self.options.get("first", 0)
        return range(first, first + self.options["count"])

    async def apaced(self, enqueue: Callable[[int], Awaitable[Any]]) -> None:
        await self.aready()
        due = time.monotonic()
        for number in self.numbers():
            await enqueue(number)
            self.record.ran(number)
            due += self.options["every"]
            await asyncio.sleep(max(0.0, due - time.monotonic()))
        self.finish()

    def finish(self, **facts: Any) -> None:
        self.record.write()
        say("finished", ran=len(self.record.numbers), **facts)


def chunks(count: int, size: int) -> list[range]:
    return [range(first, min(first + size, count)) for first in range(0, count, size)]
