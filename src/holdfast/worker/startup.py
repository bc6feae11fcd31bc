"""Starting a process: standard streams, an event loop that no handler can end, waiting for a database that restarts.

A handler that calls ``sys.exit`` in a task it has created (``gather``, a task group) stops the event loop with
everything on it, because asyncio lets ``SystemExit`` and ``KeyboardInterrupt`` of any task through. The task keeps its
error, so the loop is entered again.
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

from holdfast.errors import SchemaMismatch, StoreUnavailable
from holdfast.stores.flow import in_thread

if TYPE_CHECKING:
    from holdfast.features.assembly import Store

log = logging.getLogger("holdfast.worker")

T = TypeVar("T")


def run(work: Coroutine[Any, Any, T]) -> T:
    """``asyncio.run``, for work that runs handlers."""
    with asyncio.Runner() as runner:
        task = runner.get_loop().create_task(work)
        return run_until_done(task, lambda: runner.run(_awaited(task)))


def run_until_done(task: asyncio.Task[T], enter: Callable[[], T]) -> T:
    """Call ``enter``, which runs the loop until the task is done, and call it again if a handler stopped the loop."""
    while True:
        try:
            return enter()
        except (SystemExit, KeyboardInterrupt) as error:
            if task.done() or (isinstance(error, KeyboardInterrupt) and _may_be_ctrl_c()):
                raise
            log.error("A background task of a handler raised %s; the worker continues", type(error).__name__)


async def _awaited(task: asyncio.Task[T]) -> T:
    return await task


def _may_be_ctrl_c() -> bool:
    """Whether Ctrl-C raises ``KeyboardInterrupt``: not if a signal handler is installed for it."""
    return signal.getsignal(signal.SIGINT) is signal.default_int_handler


store_log = logging.getLogger("holdfast.store")

# The time a server needs to restart. The total is also the limit if a single attempt takes long to fail.
PAUSES = (0.2, 0.4, 0.8, 1.6)
# Between attempts of a process that waits for its database without a time limit.
LONGEST_PAUSE = 3.0


def pauses(*, endless: bool = False) -> Iterator[float]:
    for pause in itertools.chain(PAUSES, itertools.repeat(LONGEST_PAUSE) if endless else ()):
        yield pause * random.uniform(0.5, 1.0)


def refuse_unmigrated(store: Store) -> None:
    """Raise if the tables of Holdfast are not in the database."""
    if not store.schema().applied:
        raise SchemaMismatch(
            "the Holdfast tables are not in this database", code="not_migrated", fix="Run: holdfast migrate"
        )


def until_reachable(begin: Callable[[], T], store: Store) -> T:
    """Call ``begin`` until the database can be reached, for as long as it takes. The begin and the end of the outage
    are logged once (``stores/outage.py``). A missing database file or a wrong password is not waited for.

    ``begin`` must be safe to repeat: after a lost connection it is unknown whether it was done.
    """
    if store.embedded:
        return retry_briefly(begin)
    for pause in pauses(endless=True):
        try:
            result = begin()
        except StoreUnavailable as error:
            _raise_if_hopeless(error)
            store.outage.failed(error)
            time.sleep(pause)
        else:
            store.outage.answered()
            return result
    raise AssertionError("endless")


async def when_reachable(begin: Callable[[], object], store: Store) -> None:
    """The same on an event loop: ``begin`` runs on a thread. Cancel it to give up."""
    if store.embedded:
        await in_thread(retry_briefly, begin)
        return
    for pause in pauses(endless=True):
        try:
            await in_thread(begin)
        except StoreUnavailable as error:
            _raise_if_hopeless(error)
            store.outage.failed(error)
            await asyncio.sleep(pause)
        else:
            return store.outage.answered()


def _raise_if_hopeless(error: StoreUnavailable) -> None:
    if error.code == "login_refused":
        raise error


def retry_briefly(begin: Callable[[], T]) -> T:
    """Call ``begin`` until the database can be reached. After a few seconds its error is raised."""
    latest = time.monotonic() + sum(PAUSES)
    for pause in pauses():
        try:
            return begin()
        except StoreUnavailable as error:
            _raise_if_hopeless(error)
            if time.monotonic() > latest:
                raise
            store_log.warning("Not started, retrying: %s", error)
            time.sleep(pause)
    return begin()


def prepare_process() -> None:
    """Make standard streams and ``SIGCHLD`` usable. To be called first in a program, in its main thread."""
    _open_streams()
    _restore_sigchld()


def _open_streams() -> None:
    """Open closed standard streams. Otherwise the next opened file would get their number, and be used in their place
    by this process and its children."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            opened = os.open(os.devnull, os.O_RDWR)  # gets the lowest free number, which is this one
            os.set_inheritable(opened, True)
            setattr(sys, name, open(opened, "r" if name == "stdin" else "w", closefd=False))  # noqa: SIM115


def _restore_sigchld() -> None:
    """A parent process that ignores ``SIGCHLD`` passes that on. The system then keeps no exit codes, and every child
    would seem to have succeeded."""
    if hasattr(signal, "SIGCHLD") and signal.getsignal(signal.SIGCHLD) == signal.SIG_IGN:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
