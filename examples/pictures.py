"""Handlers in child processes: a timeout that kills, a memory limit, a crash, and a program.

    python examples/pictures.py                                   # on a new SQLite file
    HOLDFAST_URL=postgresql://… python examples/pictures.py       # on a migrated database

It prints how each job ended. The worker survives all of them.
"""

from __future__ import annotations

import asyncio
import os
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

import holdfast

# Each child process imports this file too, and must use the same database.
SCRATCH = os.environ.setdefault("PICTURES_SCRATCH", tempfile.mkdtemp())
os.environ.setdefault("HOLDFAST_URL", f"sqlite:///{SCRATCH}/pictures.db")

app = holdfast.App(name="pictures")
ONCE = holdfast.Retry(max_attempts=1, max_crashes=0)


@app.job(process=True, timeout=2, retry=ONCE)
def caption(text: str) -> str:
    """Runs a regular expression that takes forever on some texts. A thread cannot be stopped; a process is killed."""
    return "a sentence" if re.fullmatch(r"(\w+ ?)+\.", text) else "not a sentence"


@app.job(process=holdfast.Process(memory="256MB"), retry=ONCE)
def enlarge(pixels: int) -> int:
    """Fails with the code ``memory_limit`` if it needs more than 256 MB."""
    return len(bytearray(pixels))


@app.job(process=True, retry=ONCE)
def decode(name: str) -> None:
    """Crashes its process, as a bug in native code does."""
    os.abort()


# A command job runs a program. Files that the program writes to this folder become artifacts of the job.
WRITE = "import os, sys; open(os.environ['HOLDFAST_ARTIFACTS'] + '/report.txt', 'w').write(sys.argv[1])"
report = app.command("report", [sys.executable, "-c", WRITE, "{title}"], log_dir=SCRATCH, retry=ONCE)


async def main() -> dict[str, str]:
    """Run all jobs; return the state or the error code of each."""
    jobs: list[holdfast.Handle[Any]] = [
        await caption.aenqueue("A fine picture."),
        await caption.aenqueue("a" * 60),
        await enlarge.aenqueue(1 << 20),
        await enlarge.aenqueue(1 << 30),
        await decode.aenqueue("broken.png"),
        await report.aenqueue(title="Pictures; $(of all) kinds"),
    ]
    worker = app.worker(concurrency=2, poll=0.02)
    working = asyncio.create_task(worker.run())
    ends = {}
    for number, handle in enumerate(jobs, 1):
        job = await handle.await_end(timeout="60s")
        ends[f"{number} {job.kind}"] = job.error_code or str(job.state)
        print(f"{number} {job.kind:<8} {job.state:<12} {job.error_message or ''}")
    worker.stop()
    await working
    for artifact in await app.jobs.aartifacts(jobs[-1].id):
        print(f"{artifact.name}: {artifact.meta['size']} bytes, sha256 {artifact.meta['sha256'][:12]}…")
    await app.aclose()
    return ends


if __name__ == "__main__":
    print(f"in {Path(SCRATCH)}")
    asyncio.run(main())
