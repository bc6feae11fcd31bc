"""The demo's worker processes and jobs.

The demo's jobs: quick ones, slow ones, flaky ones, some that always fail, some that start later.

``worker_app`` is what its worker processes load; the database and the tenant come by the environment.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from holdfast import config
from holdfast.app import App
from holdfast.context import SyncContext
from holdfast.engine.retry import Backoff, Retry
from holdfast.kind import Kind, Prepared

TARGET = "holdfast.cli.demo.workers:worker_app"
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


ALWAYS_FAILS = "always_fails"
LATER_BY = 3.0
SOON = Backoff(base=0.1, factor=2.0, cap=0.4)


@dataclass(frozen=True, slots=True)
class Kinds:
    greet: Kind[[int, float], str]
    render: Kind[[int, float], str]
    slow: Kind[[int, float], int]
    flaky: Kind[[int], int]
    always_fails: Kind[[int], None]
    later: Kind[[int], int]


def declare(app: App) -> Kinds:
    @app.job()
    async def greet(number: int, pause: float) -> str:
        await asyncio.sleep(pause)
        return f"hello, {number}"

    @app.job()
    def render(number: int, pause: float) -> str:
        time.sleep(pause)
        return f"page {number}"

    @app.job()
    async def slow(number: int, pause: float) -> int:
        await asyncio.sleep(pause)
        return number

    @app.job(retry=Retry(max_attempts=4, backoff=SOON))
    def flaky(ctx: SyncContext, failures: int) -> int:
        if ctx.attempt <= failures:
            raise ConnectionError("the line was busy")
        return ctx.attempt

    @app.job(ALWAYS_FAILS, retry=Retry(max_attempts=3, backoff=SOON))
    async def always_fails(number: int) -> None:
        raise ValueError(f"number {number} never works")

    @app.job()
    async def later(number: int) -> int:
        return number

    return Kinds(greet, render, slow, flaky, always_fails, later)


@dataclass(frozen=True, slots=True)
class Mix:
    """How many of each; what is left of the total is quick."""

    total: int

    @property
    def always_fails(self) -> int:
        return max(1, self.total // 100)

    @property
    def later(self) -> int:
        return max(1, self.total // 400)

    def calls(self, kinds: Kinds) -> list[Prepared[Any]]:
        """The jobs in an order that mixes the kinds, the same every time."""
        dice = random.Random(7)
        calls: list[Prepared[Any]] = [kinds.always_fails.prepare(n) for n in range(self.always_fails)]
        calls += [kinds.later.using(delay=LATER_BY).prepare(n) for n in range(self.later)]
        calls += [kinds.flaky.prepare(1 + n % 2) for n in range(self.total // 8)]
        calls += [kinds.slow.prepare(n, dice.uniform(0.08, 0.2)) for n in range(self.total // 5)]
        calls += [kinds.render.prepare(n, dice.uniform(0.01, 0.04)) for n in range(self.total // 5)]
        calls += [kinds.greet.prepare(n, dice.uniform(0.01, 0.04)) for n in range(self.total - len(calls))]
        dice.shuffle(calls)
        return calls


def make_app(url: str | None = None, tenant: str | None = None) -> App:
    return App(url, tenant=tenant or os.environ[config.TENANT_VARIABLE], name="holdfast demo")


def worker_app() -> App:
    threading.Thread(target=_leave_with_parent, name="holdfast-demo-parent", daemon=True).start()
    app = make_app()
    declare(app)
    return app


def _leave_with_parent() -> None:
    """The other end of stdin is the demo's. It closes when the demo is gone, however that came about."""
    while os.read(0, 64):  # not through sys.stdin, whose lock would be held when the interpreter ends
        pass
    os.kill(os.getpid(), signal.SIGTERM)
