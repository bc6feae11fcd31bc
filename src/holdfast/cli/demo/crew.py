"""The demo's worker processes. Whatever happens, ``close`` ends each of them, by its own pid and no other."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from holdfast import config

TARGET = "holdfast.cli.demo.kinds:worker_app"
LEASE = "1.5s"
CONCURRENCY = 8
PATIENCE = 15.0


class WorkerProcess:
    """One ``holdfast worker``, as anybody would start it."""

    def __init__(self, number: int, environment: Mapping[str, str], log: Path) -> None:
        self.number = number
        self.log = log
        self.end = "running"
        command = [
            *(sys.executable, "-m", "holdfast", "worker", TARGET),
            *("--lease", LEASE, "--grace", "1s", "--poll", "100ms", "--concurrency", str(CONCURRENCY)),
            *("--log-level", "warning"),
        ]
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,  # held open as long as we live: see kinds._leave_with_parent
                stdout=output,
                stderr=output,
                env=environment,
                start_new_session=True,  # Ctrl-C is for the demo, which then ends them itself
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def is_author(self, actor: str) -> bool:
        """Whether this is the worker that signed so: its name ends in (host:pid)."""
        return actor.endswith(f":{self.pid})")

    def freeze(self) -> None:
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        self.end = "killed"

    def ask_to_stop(self) -> None:
        if self.alive:
            self.thaw()
            self._process.terminate()

    def ended(self, within: float) -> None:
        """Wait for it, and kill it if it does not end."""
        try:
            code = self._process.wait(timeout=max(0.0, within))
            if self.end == "running":
                # Asked to stop before it had come up, it is ended by the signal itself.
                self.end = "stopped" if code in (0, -signal.SIGTERM) else f"failed with {code}"
        except subprocess.TimeoutExpired:
            self.kill()
        finally:
            if self._process.stdin is not None:
                self._process.stdin.close()


class Crew:
    def __init__(self, url: str, tenant: str, logs: Path) -> None:
        self._environment = {**os.environ, config.URL_VARIABLE: url, config.TENANT_VARIABLE: tenant}
        self._logs = logs
        self.workers: list[WorkerProcess] = []

    def start(self) -> WorkerProcess:
        number = len(self.workers) + 1
        worker = WorkerProcess(number, self._environment, self._logs / f"worker-{number}.log")
        self.workers.append(worker)
        return worker

    @property
    def alive(self) -> list[WorkerProcess]:
        return [worker for worker in self.workers if worker.alive]

    def failures(self) -> list[str]:
        """Workers that ended as nobody asked them to, and the last thing they said."""
        return [
            f"worker {worker.number} {worker.end}: {_last_words(worker.log)}"
            for worker in self.workers
            if worker.end.startswith("failed")
        ]

    def close(self) -> None:
        for worker in self.workers:
            worker.ask_to_stop()
        deadline = time.monotonic() + PATIENCE
        for worker in self.workers:
            worker.ended(deadline - time.monotonic())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _last_words(log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines()
    return "; ".join(lines[-2:]) or "it said nothing"
