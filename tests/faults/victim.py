"""What the worker processes of the fault tests run: handlers that leave effects, can be held, and misbehave on demand.

`HOLDFAST_TEST_FOLDER` is where they write what they did and where a file named `go` lets the held ones end.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import re
import signal
import time
from pathlib import Path

from holdfast import App, Backoff, Context, Retry, SyncContext
from tests.faults import journey, pacing, skew
from tests.faults.effects import leave
from tests.support.worker_processes import FOLDER_VARIABLE

skew.install()

FOLDER = Path(os.environ[FOLDER_VARIABLE])

app = App(name="victim", enqueued_by="tester")
journey.declare(app)
pacing.declare(app)

AT_ONCE = Backoff(base=0.05, factor=1.0, cap=0.05, jitter=False)


def _begin(ctx: Context | SyncContext) -> None:
    leave(FOLDER, ctx.job_id, ctx.attempt)


@app.job(retry=Retry(max_attempts=5, max_crashes=100))
def work(ctx: SyncContext, number: int = 0, nap: float = 0.0) -> int:
    _begin(ctx)
    time.sleep(nap)
    return number


@app.job(retry=Retry(max_attempts=5, max_crashes=100))
def clock(ctx: SyncContext) -> float:
    """What time this process believes it is."""
    _begin(ctx)
    return time.time()


@app.job(retry=Retry(max_attempts=5, max_crashes=100))
async def awork(ctx: Context, number: int = 0) -> int:
    _begin(ctx)
    return number


@app.job(retry=Retry(max_attempts=5, max_crashes=100))
def hold(ctx: SyncContext, number: int = 0) -> int:
    _begin(ctx)
    while not (FOLDER / "go").exists():
        time.sleep(0.01)
    return number


@app.job(retry=Retry(max_attempts=5, max_crashes=100))
async def ahold(ctx: Context, number: int = 0) -> int:
    """The same without a thread that cannot be stopped."""
    _begin(ctx)
    try:
        while not (FOLDER / "go").exists():  # noqa: ASYNC110 - there is no event between processes
            await asyncio.sleep(0.01)
    except asyncio.CancelledError:
        leave(FOLDER, ctx.job_id, ctx.attempt, "stopped")
        raise
    return number


@app.job(retry=Retry(max_attempts=5, max_crashes=100))
async def save(ctx: Context, steps: int = 3) -> int:
    """Goes on from where it was, step by step."""
    _begin(ctx)
    done = int(await ctx.checkpoint.load(default=0))
    for step in range(done + 1, steps + 1):
        await ctx.checkpoint.save(step)
        leave(FOLDER, ctx.job_id, ctx.attempt, f"step {step}")
    return steps


@app.job(retry=Retry(max_attempts=5, max_crashes=100))
async def walk(ctx: Context, steps: int = 2) -> list[int]:
    """Durable steps: each leaves its effect, and what is remembered is not done again."""
    _begin(ctx)
    return [await ctx.step(f"step {n}", _tread, ctx.job_id, ctx.attempt, n) for n in range(1, steps + 1)]


def _tread(job_id: str, attempt: int, n: int) -> int:
    leave(FOLDER, job_id, attempt, f"step {n}")
    return n


@app.job(retry=Retry(max_attempts=5, max_crashes=100, backoff=AT_ONCE))
def flaky(ctx: SyncContext, fails: int = 1) -> int:
    """Fails that many times, then succeeds."""
    _begin(ctx)
    before = int(ctx.checkpoint.load("failures", 0))
    if before < fails:
        ctx.checkpoint.save(before + 1, "failures")
        raise RuntimeError(f"failure {before + 1} of {fails}")
    return before


@app.job()
def herd(ctx: SyncContext) -> None:
    raise RuntimeError("all at once")


@app.job(retry=Retry(max_attempts=5, max_crashes=100))
def spawn(ctx: SyncContext, number: int) -> None:
    """A child that is enqueued once, however often this runs."""
    _begin(ctx)
    work.using(key=f"child-of-{number}").enqueue(number=number)


@app.job(retry=Retry(max_attempts=5, max_crashes=2))
def poison(ctx: SyncContext, how: str = "kill") -> None:
    """Takes its worker with it, every time."""
    _begin(ctx)
    if how == "segfault":
        ctypes.memset(8, 0, 1)
    os.kill(os.getpid(), signal.SIGKILL)


@app.job(retry=Retry(max_attempts=5, max_crashes=100))
async def block(ctx: Context, seconds: float) -> str:
    """Blocks the event loop: nothing else of this process's async code runs meanwhile."""
    _begin(ctx)
    time.sleep(seconds)  # noqa: ASYNC251 - the fault itself
    leave(FOLDER, ctx.job_id, ctx.attempt, "ended")
    return "blocked"


@app.job(retry=Retry(max_attempts=5, max_crashes=100))
def hog(ctx: SyncContext, seconds: float, breath: float) -> int:
    """Holds the interpreter's lock in C for about `breath` seconds at a time, again and again."""
    _begin(ctx)
    end, rounds = time.monotonic() + seconds, 0
    length = _hog_length(breath)
    while time.monotonic() < end:
        _hold_the_lock(length)
        rounds += 1
    leave(FOLDER, ctx.job_id, ctx.attempt, "ended")
    return rounds


def _hold_the_lock(length: int) -> None:
    """A regular expression that takes twice as long for each letter more, and never lets go of the lock."""
    re.match(r"(a+)+b", "a" * length)


def _hog_length(breath: float) -> int:
    length = 16
    while True:
        started = time.monotonic()
        _hold_the_lock(length)
        if 2 * (time.monotonic() - started) > breath:
            return length
        length += 1


@app.job(retry=Retry(max_attempts=1))
def echo(value: object) -> object:
    return value


@app.job(retry=Retry(max_attempts=1))
def shout(text: str) -> None:
    raise RuntimeError(text)


# What no payload can carry, and a handler can return or say all the same.
STRANGE: dict[str, object] = {
    "nan": float("nan"),
    "infinity": float("inf"),
    "nul": "a\0b",
    "lone surrogate": "a\ud800b",
    "5000 digits": 10**5000,
    "bytes": b"raw",
    "set": {1, 2},
    "object": object(),
    "too large": "x" * 2_000_000,
    "mixed keys": {1: "one"},
}


def deep(levels: int) -> list[object]:
    nest: list[object] = []
    for _ in range(levels):
        nest = [nest]
    return nest


STRANGE["20000 deep"] = deep(20_000)


@app.job(retry=Retry(max_attempts=1))
def returns(what: str) -> object:
    return STRANGE[what]


@app.job(retry=Retry(max_attempts=1))
def raises(what: str) -> None:
    value = STRANGE[what]
    raise RuntimeError(value if isinstance(value, str) else type(value).__name__)
