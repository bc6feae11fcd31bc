"""The driver's end of the line between the harness and one peer: what every driver written in Python shares.

A driver is started as ``driver.py COMMAND URL OPTIONS`` inside its peer's own environment, so this module uses
the standard library alone. It says what happens as JSON lines on its output and is told ``go``, ``count`` and
``stop`` on its input. The harness does all checking; a driver only reports which job ran when.
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
    """Which job ran when, kept in memory until the measurement is over."""

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
    """One run of one command: its arguments, its record, and the two moments the harness decides."""

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
        """Everything is imported and connected: wait until the clock may start."""
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
        """One enqueue every so often; the record says when each had returned."""
        self.ready()
        due = time.monotonic()
        for number in range(self.options["count"]):
            enqueue(number)
            self.record.ran(number)
            due += self.options["every"]
            time.sleep(max(0.0, due - time.monotonic()))
        self.finish()

    async def apaced(self, enqueue: Callable[[int], Awaitable[Any]]) -> None:
        await self.aready()
        due = time.monotonic()
        for number in range(self.options["count"]):
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
