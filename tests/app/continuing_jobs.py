"""Loops that continue as new jobs. `HOLDFAST_TEST_KILL` is when the first run kills its worker, once."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from holdfast import App, Context, SyncContext

FOLDER = Path(os.environ["HOLDFAST_TEST_FOLDER"])
MOMENT = os.environ.get("HOLDFAST_TEST_KILL")
app = App(name="continuing_jobs", enqueued_by="tester")


def kill_once(moment: str, page: int) -> None:
    mark = FOLDER / "killed"
    if page == 1 and moment == MOMENT and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)


@app.job()
async def pages(ctx: Context, page: int) -> int:
    try:
        kill_once("before", page)
        if page < 3:
            await ctx.continue_as(page + 1)
        return page
    finally:
        kill_once("after", page)


@app.job(process=True)
def in_process(ctx: SyncContext, n: int) -> int:
    if n < 2:
        ctx.continue_as(n + 1)
    return n
