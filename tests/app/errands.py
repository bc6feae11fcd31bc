"""The command job of the worker that is killed: a program with a child of its own, neither of which wants to end."""

from __future__ import annotations

import sys

from holdfast import App

CODE = (
    "import os, signal, subprocess, sys, time\n"
    "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
    "open(sys.argv[1], 'w').write(str(os.getpid()) + ' ' + str(child.pid))\n"
    "time.sleep(600)\n"
)

app = App(name="errands", enqueued_by="tester")
sleeps = app.command("sleeps", [sys.executable, "-c", CODE, "{marks}"])
