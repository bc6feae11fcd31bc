"""Handlers in processes: one that would hang forever, one that crashes, and a program with its log.

    python examples/pictures.py                                   # on a new SQLite file
    HOLDFAST_URL=postgresql://… python examples/pictures.py       # on a migrated database

It prints how each of them ended. The worker process survives all of them.
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
from holdfast.worker.worker import WorkerOptions

# Every child process imports this file again and must find the same database.
SCRATCH = os.environ.setdefault("PICTURES_SCRATCH", tempfile.mkdtemp())
os.environ.setdefault("HOLDFAST_URL", f"sqlite:///{SCRATCH}/pictures.db")

app = holdfast.App(name="pictures")
ONCE = holdfast.Retry(max_attempts=1, max_crashes=0)


@app.job(process=True, timeout=2, retry=ONCE)
def caption(text: str) -> str:
    """A regular expression that takes forever on some texts and holds the interpreter lock."""
    return "fine" if re.fullmatch(r"(\w+ ?)+\.", text) else "no sentence"


@app.job(process=holdfast.Process(memory="256MB"), retry=ONCE)
def enlarge(pixels: int) -> int:
    return len(bytearray(pixels))


@app.job(process=True, retry=ONCE)
def decode(name: str) -> None:
    os.abort()  # as native code may


WRITE = "import os, sys; open(os.environ['HOLDFAST_ARTIFACTS'] + '/report.txt', 'w').write(sys.argv[1])"
report = app.command("report", [sys.executable, "-c", WRITE, "{title}"], log_dir=SCRATCH, retry=ONCE)


async def main() -> dict[str, str]:
    """Run them all, and return how each ended: the state, or the error code."""
    jobs: list[holdfast.Handle[Any]] = [
        await caption.aenqueue("A fine picture."),
        await caption.aenqueue("a" * 60),
        await enlarge.aenqueue(1 << 20),
        await enlarge.aenqueue(1 << 30),
        await decode.aenqueue("broken.png"),
        await report.aenqueue(title="Pictures; $(of all) kinds"),
    ]
    worker = app.worker(WorkerOptions(concurrency=2, poll=0.02))
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
