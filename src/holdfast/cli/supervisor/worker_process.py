"""Entry point of a child: ``python -m holdfast.cli.supervisor.worker_process FD …``, started by a supervisor."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import sys
import threading
import time
from contextlib import AbstractAsyncContextManager
from typing import Any, NoReturn

from holdfast.app import App
from holdfast.cli import output
from holdfast.cli.failures import FAILED, OK, guarded
from holdfast.cli.main import leave
from holdfast.cli.output import say
from holdfast.cli.run_worker import Stopper, run_to_end, serve, serve_metrics
from holdfast.cli.serve import make_web, serving
from holdfast.cli.session import load_runnable, wait_ready, wait_shortly
from holdfast.cli.supervisor.process import MARGIN, STOP_NOW, Plan
from holdfast.cli.supervisor.reload import files_of, imported_files

REPORT_EVERY = 1.0


class Reports:
    """What the supervisor is told, without waiting: one that is stopped (Ctrl-Z) does not read, and must not stop its
    workers as well. What it could not be told now it is told with the next report."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._news: dict[str, Any] = {}
        self._unsent = b""

    def tell(self, **facts: Any) -> None:
        self._news |= facts
        with contextlib.suppress(OSError):  # it is full, or the supervisor gone, which another has seen by itself
            while self._unsent or self._news:
                if not self._unsent:
                    self._unsent, self._news = json.dumps(self._news).encode() + b"\n", {}
                self._unsent = self._unsent[self._channel.send(self._unsent, socket.MSG_DONTWAIT) :]


class Line:
    """The child's end of the socket. Orders are read by a thread: it hears them when the event loop is blocked, too."""

    def __init__(self, channel: socket.socket) -> None:
        channel.set_inheritable(False)  # a program that a handler starts must not keep it open
        self._reports = Reports(channel)
        self._lines = channel.makefile("rb")
        self.plan = Plan.from_line(self._lines.readline())
        self._stopper: Stopper | None = None
        self._attached = threading.Lock()
        threading.Thread(target=self._listen, name="holdfast-supervisor", daemon=True).start()

    def attach(self, stopper: Stopper) -> None:
        with self._attached:
            self._stopper = stopper

    def report(self, **facts: Any) -> None:
        self._reports.tell(**facts)

    def _listen(self) -> None:
        with contextlib.suppress(OSError):
            for line in self._lines:
                self._stop(at_once=line == STOP_NOW)
        # Nobody is left who would end us if we did not.
        self._stop(at_once=False)
        time.sleep(self.plan.options.grace + MARGIN)
        os._exit(FAILED)

    def _stop(self, *, at_once: bool) -> None:
        with self._attached:
            if self._stopper is None:
                os._exit(OK)  # nothing has been taken yet
            self._stopper.from_thread(at_once=at_once)


def main() -> NoReturn:
    line = Line(socket.socket(fileno=int(sys.argv[1])))
    plan = line.plan
    sys.argv[0] = plan.program  # whose name an app without one takes
    # Compiled files are told apart by the second: a file saved twice in one would be taken for the old one.
    sys.dont_write_bytecode = plan.watch
    output.set_up(plan.log_level, as_json=plan.log_json, process=plan.number)
    leave(guarded(lambda: _work(line, plan), as_json=plan.as_json))


def _work(line: Line, plan: Plan) -> None:
    def tell(message: str) -> None:
        if not plan.as_json:
            say(f"[{plan.number}] {message}")

    probe = serve_metrics(plan.metrics_host, plan.metrics_port, plan.number, tell)
    try:
        app = load_runnable(plan.app, plan.url, wait_shortly if plan.options.burst else wait_ready)
    except Exception as error:
        if plan.watch:
            line.report(files=sorted(files_of(error) | imported_files()))
        raise

    async def work() -> None:
        reporting: asyncio.Task[None] | None = None

        def begun(stopper: Stopper) -> None:
            nonlocal reporting
            line.attach(stopper)
            line.report(up=True)
            reporting = asyncio.create_task(_report(line, stopper))

        stopper = await serve(app, plan.options, tell, begun, probe, beside=_web(plan, app))
        if reporting is not None:
            reporting.cancel()
        line.report(taken=stopper.worker.taken, done=not stopper.asked)

    run_to_end(work())


def _web(plan: Plan, app: App) -> AbstractAsyncContextManager[object]:
    """The API and the dashboard beside the worker, where that was asked for."""
    if plan.listen is None:
        return contextlib.nullcontext()
    return serving(make_web(app, local=True), socket.socket(fileno=plan.listen))


async def _report(line: Line, stopper: Stopper) -> None:
    """Now and then: so that what a child did before it was killed is counted, up to its last second."""
    said: dict[str, Any] = {}
    while True:
        news: dict[str, Any] = {"taken": stopper.worker.taken}
        if line.plan.watch:
            news["files"] = sorted(imported_files())  # handlers may import more as they go
        line.report(**(news if news != said else {}))
        said = news
        await asyncio.sleep(REPORT_EVERY)


if __name__ == "__main__":
    main()
