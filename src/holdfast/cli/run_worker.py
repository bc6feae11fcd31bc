"""Run one worker in this process, and stop it on signals.

The first SIGTERM or SIGINT lets running jobs end within the grace period; the second releases them at once. Either way
each job is settled or released, and the lease is closed, before the process exits with 0.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from functools import partial
from importlib.util import find_spec
from typing import Any, TypeVar

from holdfast.app import App
from holdfast.app.internals import kinds_of, make_runner
from holdfast.cli.output import counted, line
from holdfast.cli.probes import WorkerProbe, serve_status
from holdfast.engine.job import EVERY_TENANT
from holdfast.worker.idle import SleepingWorker
from holdfast.worker.startup import run_until_done
from holdfast.worker.worker import Worker, WorkerOptions

T = TypeVar("T")

STOPPING = "Stopping: waiting for running jobs. Press Ctrl-C again to return them to the queue and exit."
STOPPING_NOW = "Stopping now: running jobs return to the queue."
# How long cancelled tasks may take to end.
CANCEL_TIMEOUT = 0.5


def serve_metrics(host: str, port: int | None, number: int, tell: Callable[[str], None]) -> WorkerProbe:
    """Serve metrics and probes of this process if a port is given. Process ``number`` uses ``port + number - 1``."""
    probe = WorkerProbe()
    if port is not None:
        server = serve_status(host, port + (number - 1 if port else 0), probe)
        address = f"http://{host}:{server.server_port}"
        if find_spec("prometheus_client") is None:
            missing = "no metrics: pip install 'holdfast[prometheus]'"
            tell(f"Probes (/livez, /readyz) of this process: {address}/readyz; {missing}")
        else:
            tell(f"Probes (/livez, /readyz) and metrics of this process: {address}/metrics")
    return probe


class Stopper:
    """Stops a worker on a signal or on an order of its supervisor. ``requested`` tells whether that happened."""

    def __init__(self, worker: Worker | SleepingWorker, tell: Callable[[str], None]) -> None:
        self.worker = worker
        self.requested = False
        self._signals = 0
        self._tell = tell
        self._loop = asyncio.get_running_loop()

    def stop(self, *, at_once: bool) -> None:
        self.requested = True
        if at_once:
            self.worker.stop_now()
        else:
            self.worker.stop()

    def stop_from_thread(self, *, at_once: bool) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: the worker has ended
            self._loop.call_soon_threadsafe(lambda: self.stop(at_once=at_once))

    def on_signal(self) -> None:
        self._signals += 1
        self.stop(at_once=self._signals > 1)
        self._tell(STOPPING if self._signals == 1 else STOPPING_NOW)

    def on_hangup(self) -> None:
        if not self._signals:
            self.on_signal()


def on_signals(stop: Callable[[], None], hang_up: Callable[[], None]) -> None:
    """Call ``stop`` on SIGTERM and SIGINT, and ``hang_up`` on SIGHUP.

    SIGHUP means that the terminal was closed; it may arrive twice, from the terminal and from the shell. Under
    ``nohup`` it stays ignored.
    """
    loop = asyncio.get_running_loop()
    handlers = {signal.SIGTERM: stop, signal.SIGINT: stop}
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
        handlers[signal.SIGHUP] = hang_up
    os.register_at_fork(after_in_child=partial(_restore_signals, *handlers))
    for number, handler in handlers.items():
        loop.add_signal_handler(number, handler)


def _restore_signals(*numbers: signal.Signals) -> None:
    """Restore the default handlers in a fork of this process, which a handler may have made (``multiprocessing``).

    A fork shares the wakeup descriptor: without this, its signals would reach the worker's loop and not end the fork.
    """
    signal.set_wakeup_fd(-1)
    for number in numbers:
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)


def run_to_end(work: Coroutine[Any, Any, T], loop: asyncio.AbstractEventLoop | None = None) -> T:
    """Like ``asyncio.run``, but do not wait for threads and tasks: one that hangs must not keep the process alive.

    The modules that are imported by now live as long as the process, so the garbage collector skips their objects from
    here on. Otherwise a full collection stops everything for 100 ms, and a request with many values triggers one.
    """
    gc.freeze()
    loop = loop or asyncio.new_event_loop()
    task = loop.create_task(work)
    try:
        return run_until_done(task, lambda: loop.run_until_complete(task))
    finally:
        loop.run_until_complete(cancel_tasks(set(), CANCEL_TIMEOUT))
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()


async def cancel_tasks(others: set[asyncio.Task[Any]], timeout: float) -> None:
    """Cancel the remaining tasks but ``others``: one that still tries to connect to a database, for example."""
    tasks = asyncio.all_tasks() - others - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks, timeout=timeout)


async def serve(
    app: App,
    settings: WorkerOptions,
    tell: Callable[[str], None],
    on_start: Callable[[Stopper], None] = lambda stopper: None,
    probe: WorkerProbe | None = None,
    alongside: AbstractAsyncContextManager[object] | None = None,
) -> Stopper:
    """Run a worker until it ends. ``on_start`` is called when it is ready; ``alongside`` is entered while it runs."""
    worker = make_runner(app, settings)
    stopper = Stopper(worker, tell)
    on_signals(stopper.on_signal, stopper.on_hangup)
    tell(f"{worker.name} started: {_served(app, worker.options)}")
    if probe is not None:
        probe.attach(worker)
    on_start(stopper)
    try:
        async with alongside or contextlib.nullcontext():
            await worker.run()
    finally:
        await app.aclose()
    tell(f"{worker.name} stopped after {counted(worker.taken, 'attempt')}.")
    return stopper


def _served(app: App, options: WorkerOptions) -> str:
    """``queues default, mail; all tenants; jobs: send_receipt``"""
    queues = f"queue{'s' if len(options.queues) > 1 else ''} {', '.join(options.queues)}"
    tenants = "all tenants" if options.tenant == EVERY_TENANT else f"tenant {options.tenant}"
    return f"{queues}; {tenants}; jobs: {line(', '.join(sorted(kinds_of(app))))}"
