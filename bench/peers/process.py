"""A driver as a process: started with a command, controlled by JSON lines, and always ended by its pid."""

from __future__ import annotations

import json
import queue
import subprocess
import threading
import time
from array import array
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self


class DriverFailed(RuntimeError):
    """A driver ended, did not respond in time, or failed its check."""


class Driver:
    """A running driver. Its stderr is kept for the error message."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], folder: Path) -> None:
        self._errors = (folder / "stderr").open("a+b")
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env=dict(environment),
            cwd=folder,
        )
        self.ran = 0
        self.begun = 0
        self._events: queue.Queue[dict[str, Any]] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        return self.process.pid

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("{"):  # some libraries print
                event = json.loads(line)
                self.ran = max(self.ran, event.get("ran", 0))
                if event["event"] == "begun":
                    self.begun = event["at"]
                if event["event"] not in ("progress", "count"):
                    self._events.put(event)
        self._events.put({"event": "end"})

    def tell(self, word: str) -> None:
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(word + "\n")
            self.process.stdin.flush()
        except OSError as error:
            raise DriverFailed(f"the driver is gone: {self.errors()}") from error

    def expect(self, name: str, within: float) -> dict[str, Any]:
        """Return the next event with this name; earlier events are skipped."""
        deadline = time.monotonic() + within
        while True:
            try:
                event = self._events.get(timeout=max(0.01, deadline - time.monotonic()))
            except queue.Empty:
                raise DriverFailed(f"no {name!r} within {within:.0f} s: {self.errors()}") from None
            if event["event"] == name:
                return event
            if event["event"] == "end":
                raise DriverFailed(f"ended before {name!r}: {self.errors()}")

    def errors(self) -> str:
        self._errors.seek(0)
        return self._errors.read()[-1500:].decode(errors="replace").strip()

    def close(self) -> None:
        """Let the process end by itself, and kill it if it does not."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        try:
            self.process.stdin.close()
            self.process.wait(timeout=20)
        except (subprocess.TimeoutExpired, BrokenPipeError):
            self.process.kill()
            self.process.wait(timeout=10)
        self._reader.join(timeout=5)
        if not self._reader.is_alive():
            self.process.stdout.close()
        self._errors.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None and self.process.poll() is None:
            self.process.kill()
        self.close()


class Runs:
    """The records of drivers: the numbers of the jobs that ran, and when each started."""

    def __init__(self, records: Iterable[Path]) -> None:
        self.numbers = array("q")
        self.times = array("q")
        for path in records:
            for line in path.read_text().splitlines():
                if line:
                    number, at = line.split()
                    self.numbers.append(int(number))
                    self.times.append(int(at))

    def since(self, earlier: Mapping[int, int]) -> list[float]:
        """Milliseconds since an earlier moment of each job. A handler may start before enqueue has returned."""
        pairs = zip(self.numbers, self.times, strict=True)
        return [max(0.0, (at - earlier[number]) / 1e6) for number, at in pairs if number in earlier]

    def check_no_twice(self) -> None:
        if len(set(self.numbers)) != len(self.numbers):
            raise DriverFailed(f"{len(self.numbers)} runs of {len(set(self.numbers))} jobs: some ran twice")

    def check_once(self, count: int) -> None:
        """Check that each of 0 … count-1 occurs exactly once."""
        if sorted(self.numbers) != list(range(count)):
            raise DriverFailed(
                f"{len(self.numbers)} runs of {len(set(self.numbers))} jobs instead of {count} once each"
            )
