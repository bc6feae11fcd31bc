"""Jobs of a worker that is killed: a program with a child that does not want to end, and a handler that logs."""

from __future__ import annotations

import sys
import time

from holdfast import App, SyncContext

CODE = (
    "import os, signal, subprocess, sys, time\n"
    "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    "print('begun', flush=True)\n"
    "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
    "open(sys.argv[1], 'w').write(str(os.getpid()) + ' ' + str(child.pid))\n"
    "time.sleep(600)\n"
)

app = App(name="errands", enqueued_by="tester")
sleeps = app.command("sleeps", [sys.executable, "-c", CODE, "{marks}"])


@app.job()
def talks(ctx: SyncContext) -> None:
    ctx.log.info("begun")
    time.sleep(600)
