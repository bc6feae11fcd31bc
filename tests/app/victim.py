"""What the worker processes of `test_killed_worker.py` run: jobs that say when they have begun, and can be held.

`HOLDFAST_TEST_FOLDER` is where they leave their marks: one line for each beginning, and a file that lets them end.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from holdfast import App, SyncContext

FOLDER = Path(os.environ["HOLDFAST_TEST_FOLDER"])

app = App(name="victim", enqueued_by="tester")


@app.job()
def hold(ctx: SyncContext, number: int) -> int:
    with (FOLDER / "begun").open("a") as marks:
        marks.write(f"{os.getpid()} {number} {ctx.attempt}\n")
    while not (FOLDER / "go").exists():
        time.sleep(0.01)
    return number


@app.job()
def quick(number: int) -> int:
    return number


@app.job()
def poison(ctx: SyncContext) -> None:
    os.kill(os.getpid(), 9)
