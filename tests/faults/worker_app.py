"""The app of the worker processes of the fault tests. Its handlers record effects, can be held, and fail on demand.

`HOLDFAST_TEST_FOLDER` is the folder of the effects; held handlers end when it contains a file named `go`.
`HOLDFAST_TEST_CLOCK_SKEW` shifts the clock of the process by that many seconds, as far as Python reads it.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import re
import signal
import time
from pathlib import Path

from holdfast import App, Context, Retry, SyncContext
from tests.faults import durable_jobs
from tests.faults.effects import record_effect
from tests.faults.workload import AT_ONCE, PATIENT
from tests.support.worker_processes import FOLDER_VARIABLE

if _skew := float(os.environ.get("HOLDFAST_TEST_CLOCK_SKEW") or 0.0):
    _time, _time_ns = time.time, time.time_ns
    time.time = lambda: _time() + _skew
    time.time_ns = lambda: _time_ns() + int(_skew * 1e9)

FOLDER = Path(os.environ[FOLDER_VARIABLE])

app = App(name="faults", enqueued_by="tester")
durable_jobs.declare(app)


def _begin(ctx: Context | SyncContext) -> None:
    record_effect(FOLDER, ctx.job_id, ctx.attempt)


@app.job(retry=PATIENT)
def work(ctx: SyncContext, number: int = 0, nap: float = 0.0) -> int:
    _begin(ctx)
    time.sleep(nap)
    return number


@app.job(retry=PATIENT)
def clock(ctx: SyncContext) -> float:
    """Return the time of this process."""
    _begin(ctx)
    return time.time()


@app.job(retry=PATIENT)
async def awork(ctx: Context, number: int = 0) -> int:
    _begin(ctx)
    return number


@app.job(retry=PATIENT)
def hold(ctx: SyncContext, number: int = 0) -> int:
    _begin(ctx)
    while not (FOLDER / "go").exists():
        time.sleep(0.01)
    return number


@app.job(retry=PATIENT)
async def ahold(ctx: Context, number: int = 0) -> int:
    """The async form of `hold`, which can be cancelled."""
    _begin(ctx)
    try:
        while not (FOLDER / "go").exists():  # noqa: ASYNC110 - there is no event between processes
            await asyncio.sleep(0.01)
    except asyncio.CancelledError:
        record_effect(FOLDER, ctx.job_id, ctx.attempt, "stopped")
        raise
    return number


@app.job(retry=PATIENT)
async def save(ctx: Context, steps: int = 3) -> int:
    """Continue from the last checkpoint, one checkpoint per step."""
    _begin(ctx)
    done = int(await ctx.checkpoint.load(default=0))
    for step in range(done + 1, steps + 1):
        await ctx.checkpoint.save(step)
        record_effect(FOLDER, ctx.job_id, ctx.attempt, f"step {step}")
    return steps


@app.job(retry=PATIENT)
async def walk(ctx: Context, steps: int = 2) -> list[int]:
    """Run durable steps, each of which records an effect."""
    _begin(ctx)
    return [await ctx.step(f"step {n}", _record_step, ctx.job_id, ctx.attempt, n) for n in range(1, steps + 1)]


def _record_step(job_id: str, attempt: int, n: int) -> int:
    record_effect(FOLDER, job_id, attempt, f"step {n}")
    return n


@app.job(retry=AT_ONCE)
def flaky(ctx: SyncContext, fails: int = 1) -> int:
    """Fail `fails` times, then succeed."""
    _begin(ctx)
    before = int(ctx.checkpoint.load("failures", 0))
    if before < fails:
        ctx.checkpoint.save(before + 1, "failures")
        raise RuntimeError(f"failure {before + 1} of {fails}")
    return before


@app.job()
def herd(ctx: SyncContext) -> None:
    raise RuntimeError("all at once")


@app.job(retry=PATIENT)
def spawn(ctx: SyncContext, number: int) -> None:
    """Enqueue a child with a key: one child, however often this runs."""
    _begin(ctx)
    work.using(key=f"child-of-{number}").enqueue(number=number)


@app.job(retry=Retry(max_attempts=5, max_crashes=2))
def poison(ctx: SyncContext, how: str = "kill") -> None:
    """Kill the worker, every time."""
    _begin(ctx)
    if how == "segfault":
        ctypes.memset(8, 0, 1)
    os.kill(os.getpid(), signal.SIGKILL)


@app.job(retry=PATIENT)
async def block_loop(ctx: Context, seconds: float) -> str:
    """Block the event loop: no other async code of the process runs meanwhile."""
    _begin(ctx)
    time.sleep(seconds)  # noqa: ASYNC251 - the fault itself
    record_effect(FOLDER, ctx.job_id, ctx.attempt, "ended")
    return "blocked"


@app.job(retry=PATIENT)
def hold_gil(ctx: SyncContext, seconds: float, burst: float) -> int:
    """Hold the GIL in C for about `burst` seconds at a time, for `seconds` in total."""
    _begin(ctx)
    end, rounds = time.monotonic() + seconds, 0
    length = _burst_length(burst)
    while time.monotonic() < end:
        _match_slowly(length)
        rounds += 1
    record_effect(FOLDER, ctx.job_id, ctx.attempt, "ended")
    return rounds


def _match_slowly(length: int) -> None:
    """Match a regular expression that takes twice as long per letter and never releases the GIL."""
    re.match(r"(a+)+b", "a" * length)


def _burst_length(burst: float) -> int:
    length = 16
    while True:
        started = time.monotonic()
        _match_slowly(length)
        if 2 * (time.monotonic() - started) > burst:
            return length
        length += 1


@app.job(retry=Retry(max_attempts=1))
def fail(text: str) -> None:
    raise RuntimeError(text)
