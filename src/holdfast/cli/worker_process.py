"""The program of a child: ``python -m holdfast.cli.worker_process FD …``, started by a supervisor."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import socket
import sys
import threading
from contextlib import AbstractAsyncContextManager
from typing import Any, NoReturn

from holdfast.app import App
from holdfast.cli import output
from holdfast.cli.failures import FAILED, OK, guarded
from holdfast.cli.main import leave
from holdfast.cli.output import announce
from holdfast.cli.reload import files_of, imported_files
from holdfast.cli.run_worker import Stopper, run_to_end, serve, serve_metrics
from holdfast.cli.serve import make_web, serving
from holdfast.cli.session import load_runnable, wait_ready, wait_shortly
from holdfast.cli.supervisor import MARGIN, STOP_NOW, Plan

log = logging.getLogger("holdfast.supervisor")

REPORT_EVERY = 1.0
SUPERVISOR_ENDED = "The supervisor has ended. Stopping: waiting for running jobs."


class Reports:
    """Sends reports to the supervisor without blocking.

    A supervisor that is suspended (Ctrl-Z) does not read, and must not block its workers. What does not fit into the
    socket is sent with the next report.
    """

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._pending: dict[str, Any] = {}
        self._unsent = b""

    def send(self, **facts: Any) -> None:
        self._pending |= facts
        with contextlib.suppress(OSError):  # the socket is full or closed; the reading thread handles the latter
            while self._unsent or self._pending:
                if not self._unsent:
                    self._unsent, self._pending = json.dumps(self._pending).encode() + b"\n", {}
                self._unsent = self._unsent[self._channel.send(self._unsent, socket.MSG_DONTWAIT) :]


class Link:
    """The child's end of the socket. A thread reads the orders, so they arrive even when the event loop is blocked."""

    def __init__(self, channel: socket.socket) -> None:
        channel.set_inheritable(False)  # programs that handlers start must not keep it open
        self.report = Reports(channel).send
        self._lines = channel.makefile("rb")
        self.plan = Plan.from_line(self._lines.readline())
        self._stopper: Stopper | None = None
        self._lock = threading.Lock()
        threading.Thread(target=self._listen, name="holdfast-supervisor", daemon=True).start()

    def attach(self, stopper: Stopper) -> None:
        with self._lock:
            self._stopper = stopper

    def _listen(self) -> None:
        with contextlib.suppress(OSError):
            for line in self._lines:
                self._stop(at_once=line == STOP_NOW)
        self._stop(at_once=False)
        # Nothing else would kill this process if it did not stop.
        deadline = threading.Timer(self.plan.options.grace + MARGIN, os._exit, (FAILED,))
        deadline.daemon = True
        deadline.start()
        log.warning(SUPERVISOR_ENDED)

    def _stop(self, *, at_once: bool) -> None:
        with self._lock:
            if self._stopper is None:
                os._exit(OK)  # no job has been claimed yet
            self._stopper.stop_from_thread(at_once=at_once)


def main() -> NoReturn:
    link = Link(socket.socket(fileno=int(sys.argv[1])))
    plan = link.plan
    sys.argv[0] = plan.program  # the default name of an app
    # Bytecode files record times in whole seconds: a file saved twice within one would not be compiled again.
    sys.dont_write_bytecode = plan.watch
    in_development = plan.listen is not None
    output.set_up(plan.log_level, as_json=plan.log_json, process=plan.number, jobs=in_development)
    leave(guarded(lambda: _work(link, plan), as_json=plan.as_json))


def _work(link: Link, plan: Plan) -> None:
    def tell(message: str) -> None:
        if not plan.as_json:
            announce(message, plan.number)

    probe = serve_metrics(plan.metrics_host, plan.metrics_port, plan.number, tell)
    try:
        app = load_runnable(plan.app, plan.url, wait_shortly if plan.options.burst else wait_ready)
    except Exception as error:
        if plan.watch:
            link.report(files=sorted(files_of(error) | imported_files()))
        raise

    async def work() -> None:
        reporting: asyncio.Task[None] | None = None

        def on_start(stopper: Stopper) -> None:
            nonlocal reporting
            link.attach(stopper)
            link.report(up=True)
            reporting = asyncio.create_task(_report(link, stopper))

        stopper = await serve(app, plan.options, tell, on_start, probe, alongside=_web(plan, app))
        if reporting is not None:
            reporting.cancel()
        link.report(taken=stopper.worker.taken, done=not stopper.requested)

    run_to_end(work())


def _web(plan: Plan, app: App) -> AbstractAsyncContextManager[object]:
    """Serve the API and the dashboard beside the worker, if the plan has a socket for them."""
    if plan.listen is None:
        return contextlib.nullcontext()
    return serving(make_web(app, local=True, person=plan.person), socket.socket(fileno=plan.listen))


async def _report(link: Link, stopper: Stopper) -> None:
    """Report every second, so that the jobs of a child that is killed are counted, except for its last second."""
    last: dict[str, Any] = {}
    while True:
        facts: dict[str, Any] = {"taken": stopper.worker.taken}
        if link.plan.watch:
            facts["files"] = sorted(imported_files())  # handlers may import more later
        link.report(**(facts if facts != last else {}))
        last = facts
        await asyncio.sleep(REPORT_EVERY)


if __name__ == "__main__":
    main()
