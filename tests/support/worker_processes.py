"""Worker processes for tests that stop or kill them: `holdfast worker`, ended by pid only."""

from __future__ import annotations

import os
import random
import signal
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Self

from holdfast import config
from tests.support.forkserver import Warm
from tests.support.waiting import until

ROOT = Path(__file__).parents[2]
TARGET = "tests.faults.worker_app:app"
FOLDER_VARIABLE = "HOLDFAST_TEST_FOLDER"

TIMEOUT = 20.0


def environment(url: str, folder: Path, extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment of a test process: the database, the folder for its marks, and this project."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}
    path = os.pathsep.join(filter(None, [clean.get("PYTHONPATH"), str(ROOT)]))
    ours = {config.URL_VARIABLE: url, FOLDER_VARIABLE: str(folder), "PYTHONPATH": path}
    return clean | ours | dict(extra or {})


def adopt(url: str, folder: str) -> None:
    """Make this forked process one that runs a worker: its database, its folder, and its output in `worker.log`."""
    os.environ[config.URL_VARIABLE], os.environ[FOLDER_VARIABLE] = url, folder
    with (Path(folder) / "worker.log").open("ab", buffering=0) as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)


class WorkerProcess:
    """One worker. `lease` is in seconds, and also the interval of its sweeps."""

    def __init__(
        self,
        url: str,
        folder: Path,
        number: int,
        *,
        lease: float = 1.0,
        concurrency: int = 4,
        grace: float = 5.0,
        options: tuple[str, ...] = (),
        extra: Mapping[str, str] | None = None,
        program: str | None = None,
    ) -> None:
        """`program` is Python code to run instead of `holdfast`, with the same arguments."""
        self.log = folder / f"worker-{number}.log"
        command = [
            *("worker", TARGET, "--poll", "50ms", "--log-level", "info"),
            *("--lease", f"{lease}s", "--concurrency", str(concurrency), "--grace", f"{grace}s", *options),
        ]
        self.process = Warm(command, cwd=ROOT, env=environment(url, folder, extra), log=self.log, program=program)

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def is_author(self, actor: str) -> bool:
        """Whether this worker is the actor: its name ends in (host:pid)."""
        return actor.endswith(f":{self.pid})")

    def said(self) -> str:
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def kill(self) -> None:
        """Send SIGKILL and wait for the end."""
        self.process.kill()
        self.process.wait(timeout=TIMEOUT)

    def ask_to_stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)

    def freeze(self) -> None:
        """Send SIGSTOP and wait until every thread has stopped: one in a system call continues for a moment, and may
        take a lock."""
        self.process.send_signal(signal.SIGSTOP)
        tasks = Path(f"/proc/{self.process.pid}/task")
        until(lambda: not tasks.exists() or all(_is_stopped(task) for task in tasks.iterdir()), "the worker is stopped")

    def thaw(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def wait(self, timeout: float = TIMEOUT) -> int:
        return self.process.wait(timeout=timeout)

    def stop(self) -> int:
        """Send SIGTERM; a worker that does not stop is killed, and returns -9."""
        if self.alive:
            self.thaw()
            self.ask_to_stop()
            try:
                return self.wait()
            except subprocess.TimeoutExpired:
                self.kill()
        assert self.process.returncode is not None
        return self.process.returncode


class Crew:
    """The workers of one test; all are ended on exit."""

    def __init__(self, url: str, folder: Path, **settings: object) -> None:
        self.url, self.folder = url, folder
        self._settings = settings
        self.members: list[WorkerProcess] = []

    def start(self, count: int = 1, **settings: object) -> list[WorkerProcess]:
        """`settings` are those of `WorkerProcess` and override the crew's."""
        chosen = self._settings | settings
        url = str(chosen.pop("url", self.url))
        fresh = [
            WorkerProcess(url, self.folder, len(self.members) + n + 1, **chosen)  # type: ignore[arg-type]
            for n in range(count)
        ]
        self.members += fresh
        return fresh

    def start_one(self, **settings: object) -> WorkerProcess:
        return self.start(1, **settings)[0]

    @property
    def alive(self) -> list[WorkerProcess]:
        return [member for member in self.members if member.alive]

    def kill_one(self, choice: random.Random) -> WorkerProcess:
        victim = choice.choice(self.alive)
        victim.kill()
        return victim

    def kill_all(self) -> None:
        for member in self.alive:
            member.kill()

    def said(self) -> str:
        return "\n".join(f"--- {member.log.name} ({member.pid})\n{member.said()}" for member in self.members)

    def stop(self) -> None:
        for member in self.alive:
            with suppress(ProcessLookupError):
                member.thaw()
                member.ask_to_stop()
        for member in self.members:
            member.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        try:
            self.stop()
        finally:
            self.kill_all()
        if error is not None:
            print(self.said()[-20_000:])


def _is_stopped(task: Path) -> bool:
    try:
        state = (task / "stat").read_text().rpartition(")")[2].split()[0]
    except OSError:  # a thread that has ended
        return True
    return state in ("T", "t", "Z", "X")
