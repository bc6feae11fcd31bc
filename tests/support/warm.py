"""Processes that have imported everything already: forked off one that waits for that.

Each is a process like any other (a pid, signals, an exit code, its own session, environment, folder and streams) and
runs what the entry point runs; only the half second of imports is not repeated. Tests of the command line itself start
`python -m holdfast` (`tests/cli/processes.py`).
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path

APPEND = os.O_WRONLY | os.O_CREAT | os.O_APPEND
PRELOADED = [
    *("holdfast.cli.commands", "holdfast.stores.sqlite.store", "holdfast.stores.postgres.store", "pytest"),
    "tests.support.preloaded",
]


def context() -> ForkServerContext:
    made = multiprocessing.get_context("forkserver")
    made.set_forkserver_preload(PRELOADED)
    return made


def start_call(target: Callable[..., None], *args: object) -> ForkServerProcess:
    process = context().Process(target=target, args=args, daemon=True)
    process.start()
    # Each start looks after all processes that were started, in whatever thread that is; of two who read of an end at
    # once, one is told that it was 255.
    multiprocessing.process._children.discard(process)  # type: ignore[attr-defined]
    return process


class Warm:
    """`holdfast` with these arguments, or a program in Python, under way; whoever starts it ends it. What it says is in
    one file or two. The methods are those of `subprocess.Popen`."""

    def __init__(
        self,
        arguments: Sequence[str],
        *,
        cwd: Path,
        env: Mapping[str, str],
        log: Path,
        errors: Path | None = None,
        program: str | None = None,
    ) -> None:
        said = (str(log), str(errors or log))
        self._process = start_call(_run, list(arguments), str(cwd), dict(env), said, program)

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired("holdfast", timeout or 0)
        return self._process.exitcode

    def send_signal(self, number: signal.Signals) -> None:
        """To one that has just ended nothing is sent: whoever started it hears of its end a little later."""
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def _run(arguments: list[str], cwd: str, env: dict[str, str], said: tuple[str, str], program: str | None) -> None:
    """In the new process: as `python -m holdfast` and `python -c` have it."""
    os.setsid()
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    sys.path[:0] = [cwd, *filter(None, env.get("PYTHONPATH", "").split(os.pathsep))]
    for number, path, how in ((0, os.devnull, os.O_RDONLY), (1, said[0], APPEND), (2, said[1], APPEND)):
        handle = os.open(path, how, 0o600)
        os.dup2(handle, number)
        os.close(handle)
    if program is not None:
        sys.argv[:] = ["-c", *arguments]
        exec(compile(program, "<program>", "exec"), {"__name__": "__main__"})
        return
    from holdfast.cli.main import run

    sys.argv[:] = ["holdfast", *arguments]
    run()
