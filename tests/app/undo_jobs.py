"""A job whose undo kills its worker once. `HOLDFAST_TEST_FOLDER` has the file of the effects."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from holdfast import App, Context, Reject, Retry

FOLDER = Path(os.environ["HOLDFAST_TEST_FOLDER"])
app = App(name="undo_jobs", enqueued_by="tester")


def note(text: str) -> None:
    with (FOLDER / "effects").open("a") as file:
        file.write(f"{text}\n")


def book(what: str) -> str:
    note(f"book {what}")
    return what


def cancel(what: str) -> None:
    killed = FOLDER / f"killed {what}"
    if not killed.exists():
        killed.touch()
        if what == "flight":  # before the effect
            os.kill(os.getpid(), signal.SIGKILL)
    note(f"cancel {what}")


@app.job(process=True, retry=Retry(max_attempts=1))
async def travel(ctx: Context) -> None:
    await ctx.step("flight", book, "flight", undo=cancel)
    await ctx.step("hotel", book, "hotel", undo=cancel)
    raise Reject("no_car", "none left")
