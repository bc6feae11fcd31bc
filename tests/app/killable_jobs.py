"""Jobs of processes that tests kill.

`HOLDFAST_TEST_FOLDER` names the folder where `hold` writes a line for each start and waits for the file that ends it.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from holdfast import App, SyncContext

FOLDER = Path(os.environ["HOLDFAST_TEST_FOLDER"])
# A program that ignores SIGTERM and has a child.
PROGRAM = (
    "import os, signal, subprocess, sys, time\n"
    "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    "print('begun', flush=True)\n"
    "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
    "open(sys.argv[1], 'w').write(str(os.getpid()) + ' ' + str(child.pid))\n"
    "time.sleep(600)\n"
)

app = App(name="killable", enqueued_by="tester")
sleeps = app.command("sleeps", [sys.executable, "-c", PROGRAM, "{marks}"])


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


@app.job()
def logs(ctx: SyncContext) -> None:
    ctx.log.info("begun")
    time.sleep(600)
