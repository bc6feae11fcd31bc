"""`holdfast` as a separate process, for signals, exit codes and pipes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from holdfast import config
from tests.support.forkserver import Warm

COMMAND = (sys.executable, "-m", "holdfast")


def environment(url: str | None = None) -> dict[str, str]:
    clean = {key: value for key, value in os.environ.items() if not key.startswith("HOLDFAST_")}
    return clean if url is None else clean | {config.URL_VARIABLE: url}


def run(
    *arguments: str | bytes, url: str | None = None, cwd: Path | None = None, input: bytes | None = None
) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [*COMMAND, *arguments], cwd=cwd, env=environment(url), input=input, capture_output=True, timeout=60, check=False
    )
    return subprocess.CompletedProcess(done.args, done.returncode, done.stdout.decode(), done.stderr.decode())


def call(*arguments: str, cwd: Path, url: str | None = None) -> subprocess.CompletedProcess[str]:
    """As `run`, but forked from a process that has imported everything. Not for tests of startup."""
    with TemporaryDirectory() as folder:
        out, errors = Path(folder) / "out", Path(folder) / "errors"
        process = Warm(arguments, cwd=cwd, env=environment(url), log=out, errors=errors)
        try:
            code = process.wait(60)
        finally:
            process.kill()
        return subprocess.CompletedProcess(list(arguments), code, out.read_text(), errors.read_text())


@contextmanager
def started(arguments: Sequence[str], *, cwd: Path, url: str | None = None) -> Iterator[subprocess.Popen[str]]:
    """Start a command; kill it at the end if it is still running."""
    process = subprocess.Popen(
        [*COMMAND, *arguments], cwd=cwd, env=environment(url), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
        process.communicate()


def wait_for_output(process: subprocess.Popen[str], words: str) -> None:
    """Read stderr until a line contains these words."""
    assert process.stderr is not None
    lines = []
    for line in process.stderr:
        lines.append(line)
        if words in line:
            return
    raise AssertionError(f"it never printed {words!r}: {lines}")
