"""Starts processes quickly: they are forked from a server that has imported everything.

Each is an ordinary process (a pid, signals, an exit code, its own session, environment, folder and streams) and runs
the entry point; only the half second of imports is saved. Tests of the command line itself start `python -m holdfast`
(`tests/cli/processes.py`).
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
    "tests.support.forkserver_preload",
]


def context() -> ForkServerContext:
    forkserver = multiprocessing.get_context("forkserver")
    forkserver.set_forkserver_preload(PRELOADED)
    return forkserver


def start_call(target: Callable[..., None], *args: object) -> ForkServerProcess:
    process = context().Process(target=target, args=args, daemon=True)
    process.start()
    # Each start polls all earlier processes, in any thread. If two threads poll an ended process at once, one of them
    # gets the exit code 255.
    multiprocessing.process._children.discard(process)  # type: ignore[attr-defined]
    return process


class Warm:
    """A running `holdfast` command, or a Python program; the caller must end it. Output goes to one file or two. The
    methods are those of `subprocess.Popen`."""

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
        outputs = (str(log), str(errors or log))
        self._process = start_call(_run, list(arguments), str(cwd), dict(env), outputs, program)

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
        """Send a signal, unless the process has just ended: its exit code is known a little later."""
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def _run(arguments: list[str], cwd: str, env: dict[str, str], outputs: tuple[str, str], program: str | None) -> None:
    """Runs in the new process, as `python -m holdfast` or `python -c` would."""
    os.setsid()
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    sys.path[:0] = [cwd, *filter(None, env.get("PYTHONPATH", "").split(os.pathsep))]
    for number, path, flags in ((0, os.devnull, os.O_RDONLY), (1, outputs[0], APPEND), (2, outputs[1], APPEND)):
        handle = os.open(path, flags, 0o600)
        os.dup2(handle, number)
        os.close(handle)
    if program is not None:
        sys.argv[:] = ["-c", *arguments]
        exec(compile(program, "<program>", "exec"), {"__name__": "__main__"})
        return
    from holdfast.cli.main import run

    sys.argv[:] = ["holdfast", *arguments]
    run()
