"""Worker processes with short intervals, and other programs; all are ended by their pid."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.forkserver import Warm
from tests.support.worker_processes import ROOT, environment

# A lease and a sweep of a second or two: recovery within their sum, plus some time for a busy machine.
WORKER = """
import asyncio, importlib, signal, sys

async def main(module: str, lease: str, concurrency: str) -> None:
    app = importlib.import_module(module).app
    small = {"sweep_every": 0.2, "promote_every": 0.05, "poll": 0.02, "grace": 5}
    worker = app.worker(lease_ttl=float(lease), concurrency=int(concurrency), **small)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, worker.stop)
    try:
        await worker.run()
    finally:
        await app.aclose()

asyncio.run(main(*sys.argv[1:]))
"""


def log_of(folder: Path) -> str:
    """The output of the processes."""
    return (folder / "log").read_text(errors="replace")


@contextmanager
def process(
    program: str, *arguments: str, url: str, folder: Path, extra: dict[str, str] | None = None
) -> Iterator[Warm]:
    """Run a Python program; terminate it at the end, and kill it if it does not exit."""
    (folder / "log").touch()
    started = Warm(arguments, cwd=ROOT, env=environment(url, folder, extra), log=folder / "log", program=program)
    try:
        yield started
    finally:
        if started.poll() is None:
            started.send_signal(signal.SIGTERM)
            try:
                started.wait(timeout=15)
            except subprocess.TimeoutExpired:
                started.kill()
                started.wait(timeout=10)


@contextmanager
def worker_process(
    module: str, url: str, folder: Path, *, lease: float = 2.0, concurrency: int = 4, **extra: str
) -> Iterator[Warm]:
    """Run a worker for the ``app`` of a module with additional environment variables."""
    with process(WORKER, module, str(lease), str(concurrency), url=url, folder=folder, extra=extra) as started:
        yield started
