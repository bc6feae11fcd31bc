"""Durable jobs that a test can hold inside a step, or just before they ask: their functions wait for a file by a name.

Each step leaves its effect first, so that a test knows where the job is, and what was done twice.
"""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

from holdfast import App, Context, Retry, SyncContext, step_key
from tests.faults.effects import leave
from tests.support.worker_processes import FOLDER_VARIABLE

PATIENT = Retry(max_attempts=5, max_crashes=100)


def declare(app: App) -> None:
    app.job("pace", retry=PATIENT)(pace)
    app.job("pace_in_a_thread", retry=PATIENT)(pace_in_a_thread)
    app.job("asks", retry=PATIENT)(asks)
    app.job("naps", retry=PATIENT)(naps)


def _folder() -> Path:
    return Path(os.environ[FOLDER_VARIABLE])


def _act(job: str, attempt: int, number: int) -> None:
    leave(_folder(), job, attempt, f"pace-{number} {step_key()}")


async def _astep(job: str, attempt: int, number: int, size: int) -> str:
    _act(job, attempt, number)
    await _allowed(f"go-{number}")
    return "x" * size


def _step(job: str, attempt: int, number: int, size: int) -> str:
    _act(job, attempt, number)
    while not (_folder() / f"go-{number}").exists():
        time.sleep(0.01)
    return "x" * size


async def _allowed(name: str) -> None:
    while not (_folder() / name).exists():  # noqa: ASYNC110 - there is no event between processes
        await asyncio.sleep(0.01)


async def pace(ctx: Context, size: int = 1) -> int:
    """Three steps. `size` is how much room each takes when it is written."""
    leave(_folder(), ctx.job_id, ctx.attempt)
    return sum([len(await ctx.step(f"pace-{n}", _astep, ctx.job_id, ctx.attempt, n, size)) for n in range(3)])


def pace_in_a_thread(ctx: SyncContext, size: int = 1) -> int:
    leave(_folder(), ctx.job_id, ctx.attempt)
    return sum(len(ctx.step(f"pace-{n}", _step, ctx.job_id, ctx.attempt, n, size)) for n in range(3))


async def asks(ctx: Context) -> str | None:
    """Held in its own code, on the way to the question."""
    leave(_folder(), ctx.job_id, ctx.attempt)
    await _allowed("go" if ctx.attempt > 1 else "go-first")
    decision = await ctx.approval("pay", summary="Pay for it")
    return decision.by


async def naps(ctx: Context) -> int:
    """Held in its own code, on the way to its sleep."""
    leave(_folder(), ctx.job_id, ctx.attempt)
    await _allowed("go" if ctx.attempt > 1 else "go-first")
    await ctx.sleep("10ms")
    return ctx.attempt
