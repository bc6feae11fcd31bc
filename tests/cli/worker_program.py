"""A program whose jobs record their process and can be held, for tests that kill and signal worker processes."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from holdfast.features.assembly import Store
from tests.cli.processes import started

CREW = """
import asyncio, os, time
from pathlib import Path
import holdfast

app = holdfast.App()
FOLDER = Path(__file__).parent

def mark(name: str) -> None:
    with (FOLDER / name).open("a") as marks:
        marks.write(f"{os.getpid()}\\n")

@app.job()
async def hold() -> int:
    mark("begun")
    while not (FOLDER / "go").exists():
        await asyncio.sleep(0.02)
    return os.getpid()

@app.job()
async def meet() -> int:
    mark("met")
    while len(set((FOLDER / "met").read_text().splitlines())) < 2:  # until another process runs a job too
        await asyncio.sleep(0.02)
    return os.getpid()

@app.job()
async def nap(seconds: float = 0.0) -> int:
    await asyncio.sleep(seconds)
    return os.getpid()

@app.job()
async def jam() -> None:
    mark("begun")
    time.sleep(1000)
"""


class Crew:
    """The folder of the program, and the marks that its jobs leave there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        (folder / "crew.py").write_text(CREW)

    @property
    def begun(self) -> list[int]:
        """The process id of each started job, in order."""
        marks = self.folder / "begun"
        return [int(line) for line in marks.read_text().splitlines()] if marks.exists() else []

    def let_go(self) -> None:
        (self.folder / "go").touch()

    @contextmanager
    def working(self, store: Store, *options: str) -> Iterator[subprocess.Popen[str]]:
        command = ["worker", "crew:app", "--poll", "50ms", *options]
        try:
            with started(command, cwd=self.folder, url=store.url) as process:
                yield process
        finally:
            for pid in set(self.begun):  # a failed test may have left some
                if not gone(pid):
                    os.kill(pid, signal.SIGKILL)


def gone(pid: int) -> bool:
    """Whether the process has ended; zombies have."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    state = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=False)
    return state.stdout.strip()[:1] in ("", "Z")
