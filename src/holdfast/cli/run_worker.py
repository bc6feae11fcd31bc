"""One worker in this process, and what makes it stop.

The first SIGTERM or SIGINT lets what is running end within the grace; the second hands it back at once. Either
way every job is settled or handed back and the lease is closed before the process exits with 0.
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
from typing import Any, TypeVar

from holdfast.app import App
from holdfast.cli.output import line
from holdfast.cli.probes import WorkerProbe, serve_status
from holdfast.engine.job import EVERY_TENANT
from holdfast.worker.startup import entered_again
from holdfast.worker.worker import Worker, WorkerOptions

T = TypeVar("T")

ONCE_MORE = "Stopping; once more to hand back what is running at once."
AT_ONCE = "Stopping at once."
LAST_WORDS = 0.5


def serve_metrics(host: str, port: int | None, number: int, tell: Callable[[str], None]) -> WorkerProbe:
    """Metrics and probes of this process, if a port was named; the second of several processes has the next one, and so
    on."""
    probe = WorkerProbe()
    if port is not None:
        server = serve_status(host, port + (number - 1 if port else 0), probe)
        tell(f"Probes (/livez, /readyz) and metrics of this process: http://{host}:{server.server_port}/metrics")
    return probe


class Stopper:
    """The one way to stop a worker from outside; ``asked`` says whether anybody has."""

    def __init__(self, worker: Worker, tell: Callable[[str], None]) -> None:
        self.worker = worker
        self.asked = False
        self._signals = 0
        self._tell = tell
        self._loop = asyncio.get_running_loop()

    def stop(self, *, at_once: bool) -> None:
        self.asked = True
        if at_once:
            self.worker.stop_now()
        else:
            self.worker.stop()

    def from_thread(self, *, at_once: bool) -> None:
        with contextlib.suppress(RuntimeError):  # a loop that is closed has stopped already
            self._loop.call_soon_threadsafe(lambda: self.stop(at_once=at_once))

    def on_signal(self) -> None:
        self._signals += 1
        self.stop(at_once=self._signals > 1)
        self._tell(ONCE_MORE if self._signals == 1 else AT_ONCE)

    def on_hangup(self) -> None:
        if not self._signals:
            self.on_signal()


def on_signals(stop: Callable[[], None], hang_up: Callable[[], None]) -> None:
    """``hang_up`` is for a terminal that is gone, of which a shell that ends with it may tell once more. It is not
    heard where somebody has said ``nohup``."""
    loop = asyncio.get_running_loop()
    heard = {signal.SIGTERM: stop, signal.SIGINT: stop}
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
        heard[signal.SIGHUP] = hang_up
    os.register_at_fork(after_in_child=partial(_hear_no_more, *heard))
    for number, hear in heard.items():
        loop.add_signal_handler(number, hear)


def _hear_no_more(*numbers: signal.Signals) -> None:
    """In a copy of this process, which a handler may have forked (``multiprocessing`` does): signals to it are not for
    our loop, whose ear it has, too, and they must be able to end it."""
    signal.set_wakeup_fd(-1)
    for number in numbers:
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)


def run_to_end(work: Coroutine[Any, Any, T], loop: asyncio.AbstractEventLoop | None = None) -> T:
    """``asyncio.run`` without its wait for threads and tasks: one that is stuck must not keep the process.

    What has been imported by now lives as long as the process. The garbage collector skips it from here on: a full
    collection takes 100 ms otherwise, during which nothing else runs, and a request with many values sets one off.
    """
    gc.freeze()
    loop = loop or asyncio.new_event_loop()
    task = loop.create_task(work)
    try:
        return entered_again(task, lambda: loop.run_until_complete(task))
    finally:
        loop.run_until_complete(_cancel_what_is_left())
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()


async def _cancel_what_is_left() -> None:
    """Somebody may still be knocking at a database that does not answer."""
    left = asyncio.all_tasks() - {asyncio.current_task()}
    for task in left:
        task.cancel()
    if left:
        await asyncio.wait(left, timeout=LAST_WORDS)


async def serve(
    app: App,
    settings: WorkerOptions,
    tell: Callable[[str], None],
    begun: Callable[[Stopper], None] = lambda stopper: None,
    probe: WorkerProbe | None = None,
    beside: AbstractAsyncContextManager[object] | None = None,
) -> Stopper:
    """Run a worker until it ends. ``begun`` is called when it has everything it needs; ``beside`` lasts as long."""
    serving = app.worker(settings)
    stopper = Stopper(serving, tell)
    on_signals(stopper.on_signal, stopper.on_hangup)
    whom = "every tenant" if settings.tenant == EVERY_TENANT else f"tenant {settings.tenant}"
    tell(f"{serving.name} serves {', '.join(serving.options.queues)} of {whom}: {line(', '.join(sorted(app._kinds)))}")
    if probe is not None:
        probe.attach(serving)
    begun(stopper)
    try:
        async with beside or contextlib.nullcontext():
            await serving.run()
    finally:
        await app.aclose()
    tell(f"{serving.name} has ended after {serving.taken} {'attempt' if serving.taken == 1 else 'attempts'}.")
    return stopper
