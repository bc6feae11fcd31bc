"""The jobs of `test_transactions_killed.py`, which kill their own process at a given point.

`HOLDFAST_TEST_CRASH` selects the point: inside the block, after settling but before the commit, or right after the
commit. Only the first attempt of a job does it.
"""

from __future__ import annotations

import os
import signal
from typing import Any

from holdfast import App, Context, Retry, SyncContext
from holdfast.steps.transaction import Ending

CRASH = os.environ.get("HOLDFAST_TEST_CRASH", "")

app = App(name="killable", enqueued_by="tester")


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def die_at(point: str, ctx: Context | SyncContext) -> None:
    if point == CRASH and ctx.attempt == 1:
        die()


@app.job(retry=Retry(max_attempts=5, max_crashes=100))
def pay(ctx: SyncContext, number: int) -> int:
    with (block := ctx.transaction()) as connection:
        connection.execute(f"insert into note values ('{number}')")
        block.result(number)
        die_at("in the block", ctx)
    die_at("after commit", ctx)
    return -1


@app.job(retry=Retry(max_attempts=5, max_crashes=100))
async def apay(ctx: Context, number: int) -> int:
    async with (block := ctx.transaction()) as connection:
        result = connection.execute(f"insert into note values ('{number}')")
        if hasattr(result, "__await__"):
            await result
        block.result(number)
        die_at("in the block", ctx)
    die_at("after commit", ctx)
    return -1


if CRASH == "before commit":
    complete, acomplete = Ending.complete, Ending.acomplete

    def settle_and_die(self: Ending, *args: Any, **options: Any) -> None:
        complete(self, *args, **options)
        if self.claim.attempt == 1:
            die()

    async def asettle_and_die(self: Ending, *args: Any, **options: Any) -> None:
        await acomplete(self, *args, **options)
        if self.claim.attempt == 1:
            die()

    Ending.complete, Ending.acomplete = settle_and_die, asettle_and_die  # type: ignore[method-assign]
