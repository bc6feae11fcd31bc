"""Event loop set-up, standard streams, wait for a database that restarts.

Running an event loop for a worker, which no handler can end.

A handler that calls ``sys.exit`` in a task of its own (``gather``, a task group) makes the loop itself stop, with
everything that runs on it: asyncio lets ``SystemExit`` and ``KeyboardInterrupt`` of any task through. The task has its
error nevertheless, so the loop is just entered again.

To begin beside a server that is just being restarted: what is to run for long waits a little for it.

Only for what can be done again, whether or not it was done: nobody knows after a connection is lost.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Coroutine, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

from holdfast.errors import StoreUnavailable
from holdfast.stores.flow import in_thread

if TYPE_CHECKING:
    from holdfast.features.assembly import Store

log = logging.getLogger("holdfast.worker")

T = TypeVar("T")


def run(work: Coroutine[Any, Any, T]) -> T:
    """``asyncio.run``, for work that runs handlers."""
    with asyncio.Runner() as runner:
        task = runner.get_loop().create_task(work)
        return entered_again(task, lambda: runner.run(_awaited(task)))


def entered_again(task: asyncio.Task[T], enter: Callable[[], T]) -> T:
    """What ``enter`` answers, which runs the loop until the task is done."""
    while True:
        try:
            return enter()
        except (SystemExit, KeyboardInterrupt) as error:
            if task.done() or (isinstance(error, KeyboardInterrupt) and _may_be_pressed()):
                raise
            log.error("A background task of a handler raised %s; the worker continues", type(error).__name__)


async def _awaited(task: asyncio.Task[T]) -> T:
    return await task


def _may_be_pressed() -> bool:
    """Whether a Ctrl-C would come as an exception: not where somebody has installed a handler for it."""
    return signal.getsignal(signal.SIGINT) is signal.default_int_handler


store_log = logging.getLogger("holdfast.store")

# What a server needs to come up again. One that is not there, or does not answer, is not waited for as long again.
PAUSES = (0.2, 0.4, 0.8, 1.6)
# Between attempts of a process that runs until it is stopped, and so waits for its database for as long as it takes.
LONGEST_PAUSE = 3.0


def pauses(*, endless: bool = False) -> Iterator[float]:
    for pause in itertools.chain(PAUSES, itertools.repeat(LONGEST_PAUSE) if endless else ()):
        yield pause * random.uniform(0.5, 1.0)


def until_reachable(begin: Callable[[], T], store: Store) -> T:
    """Call ``begin`` until the database can be reached, for as long as it takes. The outage is logged once, and its end
    (``stores/outage.py``). A database file is not waited for: it is there, or it is named wrongly."""
    if store.embedded:
        return when_there(begin)
    for pause in pauses(endless=True):
        try:
            answer = begin()
        except StoreUnavailable as error:
            store.outage.failed(error)
            time.sleep(pause)
        else:
            store.outage.answered()
            return answer
    raise AssertionError("endless")


async def when_reachable(begin: Callable[[], object], store: Store) -> None:
    """The same on an event loop, beside other work: ``begin`` runs on a thread. Cancel it to give up."""
    if store.embedded:
        await in_thread(when_there, begin)
        return
    for pause in pauses(endless=True):
        try:
            await in_thread(begin)
        except StoreUnavailable as error:
            store.outage.failed(error)
            await asyncio.sleep(pause)
        else:
            return store.outage.answered()


def when_there(begin: Callable[[], T]) -> T:
    """What ``begin`` answers, once the store can be reached; its error, if that is not soon."""
    latest = time.monotonic() + sum(PAUSES)
    for pause in pauses():
        try:
            return begin()
        except StoreUnavailable as error:
            if time.monotonic() > latest:
                raise
            store_log.warning("Not started, retrying: %s", error)
            time.sleep(pause)
    return begin()


def put_right() -> None:
    """To be called first thing by a program of ours, in its main thread."""
    _open_streams()
    _hear_of_ends()


def _open_streams() -> None:
    """Where one is closed the next file that is opened would be taken for it, here and by all that is started."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            opened = os.open(os.devnull, os.O_RDWR)  # the lowest number that is free: this one
            os.set_inheritable(opened, True)
            setattr(sys, name, open(opened, "r" if name == "stdin" else "w", closefd=False))  # noqa: SIM115


def _hear_of_ends() -> None:
    """Whoever started us may ignore the ends of children, which is inherited: the system then keeps no exit codes, and
    every program would seem to have ended well."""
    if hasattr(signal, "SIGCHLD") and signal.getsignal(signal.SIGCHLD) == signal.SIG_IGN:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
