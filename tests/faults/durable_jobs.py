"""Durable jobs of the worker processes, each as an async handler, in a thread and partly in a child process.

`order` contains every durable call. Each of its steps records an effect with the step's key and passes kill points, so
that a test can kill a worker at each boundary. `charge` fails at its first try. `CALLS` lists the steps that must be
stored in the end.

`three_steps`, `asks` and `sleeps` wait for a file before they continue, so that a test can hold them inside a step, or
just before an approval or a sleep.
"""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path
from typing import Any

from holdfast import App, Backoff, Context, Retry, SyncContext, step_key
from tests.faults.effects import effects, record_effect
from tests.faults.kill_points import kill_point
from tests.faults.workload import PATIENT
from tests.support.worker_processes import FOLDER_VARIABLE

STEPS = ("reserve", "pack", "label", "charge", "bill")
_CALLS = (
    *(("step", "reserve"), ("patch", "labels"), ("step", "pack"), ("step", "label"), ("approval", "pay")),
    *(("step", "charge"), ("sleep", "cool off"), ("event", "shipped"), ("step", "bill")),
)
CALLS = [(number, *call) for number, call in enumerate(_CALLS, start=1)]
RESULT = ["reserve done", ["pack done", "label done"], "ada", "charge done", "parcel 7", "bill done"]
ORDER_KINDS = ("order", "order_in_thread", "order_in_process")
TWICE = Retry(max_attempts=2, backoff=Backoff(base=0.0, cap=0.0, jitter=False))


def declare(app: App) -> None:
    app.job("order", retry=PATIENT)(order)
    app.job("order_in_thread", retry=PATIENT)(order_in_thread)
    app.job("order_in_process", retry=PATIENT, process=True)(order_in_process)
    app.job("three_steps", retry=PATIENT)(three_steps)
    app.job("three_steps_in_thread", retry=PATIENT)(three_steps_in_thread)
    app.job("asks", retry=PATIENT)(asks)
    app.job("sleeps", retry=PATIENT)(sleeps)


def _folder() -> Path:
    return Path(os.environ[FOLDER_VARIABLE])


# -- an order ------------------------------------------------------------------------------------------------------


def act(name: str, job: str, attempt: int) -> str:
    kill_point(f"enter {name}")
    record_effect(_folder(), job, attempt, f"{name} {step_key()}")
    kill_point(f"leave {name}")
    return f"{name} done"


async def aact(name: str, job: str, attempt: int) -> str:
    return act(name, job, attempt)


def charge(job: str, attempt: int) -> str:
    if not any(effect.job == job for effect in effects(_folder(), "declined")):
        record_effect(_folder(), job, attempt, "declined")
        kill_point("decline charge")
        raise ConnectionError("the bank is unreachable")
    return act("charge", job, attempt)


async def order(ctx: Context, pause: float = 0.2) -> list[Any]:
    record_effect(_folder(), ctx.job_id, ctx.attempt)
    run = (ctx.job_id, ctx.attempt)
    reserved = await ctx.step("reserve", aact, "reserve", *run)
    names = ["pack", "label"] if await ctx.patched("labels") else ["pack"]
    packed = await ctx.gather(*(ctx.step(name, act, name, *run) for name in names))
    decision = await ctx.approval("pay", summary="Pay for it")
    charged = await ctx.step_options(retry=TWICE).step("charge", charge, *run)
    await ctx.sleep(pause, "cool off")
    event = await ctx.wait_for_event("shipped", match={"job": ctx.job_id})
    billed = await ctx.step("bill", act, "bill", *run)
    return [reserved, packed, decision.by, charged, event.data["what"], billed]


def order_in_thread(ctx: SyncContext, pause: float = 0.2) -> list[Any]:
    record_effect(_folder(), ctx.job_id, ctx.attempt)
    run = (ctx.job_id, ctx.attempt)
    reserved = ctx.step("reserve", aact, "reserve", *run)
    names = ["pack", "label"] if ctx.patched("labels") else ["pack"]
    packed = ctx.gather(*(ctx.submit(name, act, name, *run) for name in names))
    decision = ctx.approval("pay", summary="Pay for it")
    charged = ctx.step_options(retry=TWICE).step("charge", charge, *run)
    ctx.sleep(pause, "cool off")
    event = ctx.wait_for_event("shipped", match={"job": ctx.job_id})
    billed = ctx.step("bill", act, "bill", *run)
    return [reserved, packed, decision.by, charged, event.data["what"], billed]


def order_in_process(ctx: SyncContext, pause: float = 0.2) -> list[Any]:
    """A function with this name, because the child process imports the handler by name."""
    return order_in_thread(ctx, pause)


# -- jobs that a test holds ----------------------------------------------------------------------------------------


async def three_steps(ctx: Context, size: int = 1) -> int:
    """`size` is the length of each step's result."""
    record_effect(_folder(), ctx.job_id, ctx.attempt)
    return sum([len(await ctx.step(f"step-{n}", _aheld_step, ctx.job_id, ctx.attempt, n, size)) for n in range(3)])


def three_steps_in_thread(ctx: SyncContext, size: int = 1) -> int:
    record_effect(_folder(), ctx.job_id, ctx.attempt)
    return sum(len(ctx.step(f"step-{n}", _held_step, ctx.job_id, ctx.attempt, n, size)) for n in range(3))


async def _aheld_step(job: str, attempt: int, number: int, size: int) -> str:
    record_effect(_folder(), job, attempt, f"step-{number} {step_key()}")
    await _wait_for_file(f"go-{number}")
    return "x" * size


def _held_step(job: str, attempt: int, number: int, size: int) -> str:
    record_effect(_folder(), job, attempt, f"step-{number} {step_key()}")
    while not (_folder() / f"go-{number}").exists():
        time.sleep(0.01)
    return "x" * size


async def _wait_for_file(name: str) -> None:
    while not (_folder() / name).exists():  # noqa: ASYNC110 - there is no event between processes
        await asyncio.sleep(0.01)


async def asks(ctx: Context) -> str | None:
    record_effect(_folder(), ctx.job_id, ctx.attempt)
    await _wait_for_file("go" if ctx.attempt > 1 else "go-first")
    decision = await ctx.approval("pay", summary="Pay for it")
    return decision.by


async def sleeps(ctx: Context) -> int:
    record_effect(_folder(), ctx.job_id, ctx.attempt)
    await _wait_for_file("go" if ctx.attempt > 1 else "go-first")
    await ctx.sleep("10ms")
    return ctx.attempt
