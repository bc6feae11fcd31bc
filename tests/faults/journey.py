"""A job with every durable call in it, in three colours: what is to be killed at each of its boundaries.

Each step has an effect outside the database: a line in a file, synced, with the step's own key. `charge` fails the
first time it is tried. `CALLS` is what must be remembered in the end, whatever happened on the way.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from holdfast import App, Backoff, Context, Retry, SyncContext, step_key
from tests.faults.effects import effects, leave
from tests.faults.killing import passing
from tests.support.worker_processes import FOLDER_VARIABLE

STEPS = ("reserve", "pack", "label", "charge", "bill")
CALLS = [
    (1, "step", "reserve"),
    (2, "patch", "labels"),
    (3, "step", "pack"),
    (4, "step", "label"),
    (5, "approval", "pay"),
    (6, "step", "charge"),
    (7, "sleep", "cool off"),
    (8, "event", "shipped"),
    (9, "step", "bill"),
]
RESULT = ["reserve done", ["pack done", "label done"], "ada", "charge done", "parcel 7", "bill done"]
COLOURS = ("journey", "journey_in_a_thread", "journey_in_a_process")

PATIENT = Retry(max_attempts=5, max_crashes=100)
TWICE = Retry(max_attempts=2, backoff=Backoff(base=0.0, cap=0.0, jitter=False))


def declare(app: App) -> None:
    app.job("journey", retry=PATIENT)(journey)
    app.job("journey_in_a_thread", retry=PATIENT)(in_a_thread)
    app.job("journey_in_a_process", retry=PATIENT, process=True)(in_a_process)


def act(name: str, job: str, attempt: int) -> str:
    """The effect of a step."""
    passing(f"enter {name}")
    leave(_folder(), job, attempt, f"{name} {step_key()}")
    passing(f"leave {name}")
    return f"{name} done"


async def aact(name: str, job: str, attempt: int) -> str:
    return act(name, job, attempt)


def charge(job: str, attempt: int) -> str:
    if not any(effect.job == job for effect in effects(_folder(), "declined")):
        leave(_folder(), job, attempt, "declined")
        passing("decline charge")
        raise ConnectionError("the bank is away")
    return act("charge", job, attempt)


async def journey(ctx: Context, pause: float = 0.2) -> list[Any]:
    leave(_folder(), ctx.job_id, ctx.attempt)
    me = (ctx.job_id, ctx.attempt)
    reserved = await ctx.step("reserve", aact, "reserve", *me)
    names = ["pack", "label"] if await ctx.patched("labels") else ["pack"]
    packed = await ctx.gather(*(ctx.step(name, act, name, *me) for name in names))
    decision = await ctx.approval("pay", summary="Pay for it")
    charged = await ctx.step_options(retry=TWICE).step("charge", charge, *me)
    await ctx.sleep(pause, "cool off")
    event = await ctx.wait_for_event("shipped", match={"job": ctx.job_id})
    billed = await ctx.step("bill", act, "bill", *me)
    return [reserved, packed, decision.by, charged, event.data["what"], billed]


def in_a_thread(ctx: SyncContext, pause: float = 0.2) -> list[Any]:
    leave(_folder(), ctx.job_id, ctx.attempt)
    me = (ctx.job_id, ctx.attempt)
    reserved = ctx.step("reserve", aact, "reserve", *me)
    names = ["pack", "label"] if ctx.patched("labels") else ["pack"]
    packed = ctx.gather(*(ctx.submit(name, act, name, *me) for name in names))
    decision = ctx.approval("pay", summary="Pay for it")
    charged = ctx.step_options(retry=TWICE).step("charge", charge, *me)
    ctx.sleep(pause, "cool off")
    event = ctx.wait_for_event("shipped", match={"job": ctx.job_id})
    billed = ctx.step("bill", act, "bill", *me)
    return [reserved, packed, decision.by, charged, event.data["what"], billed]


def in_a_process(ctx: SyncContext, pause: float = 0.2) -> list[Any]:
    """Found by this name in the child."""
    return in_a_thread(ctx, pause)


def _folder() -> Path:
    return Path(os.environ[FOLDER_VARIABLE])
