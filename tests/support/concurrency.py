"""Run calls at the same time in threads, or in a forked child as pre-forking servers do."""

from __future__ import annotations

import os
import pickle
import signal
import threading
import traceback
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from holdfast.stores.postgres.pipeline import readable

T = TypeVar("T")

CHILD_TIMEOUT = 30.0


def together(*calls: Callable[[], T]) -> list[T]:
    """Run each call in its own thread, all starting at once; the first error is raised."""
    barrier = threading.Barrier(len(calls))

    def run(call: Callable[[], T]) -> T:
        barrier.wait(timeout=30)
        return call()

    with ThreadPoolExecutor(max_workers=len(calls)) as pool:
        return [future.result(timeout=60) for future in [pool.submit(run, call) for call in calls]]


class ForkFailed(AssertionError):
    """The call failed in the child; the message has its traceback."""


class ForkCrashed(ForkFailed):
    """The child was killed by a signal before it answered, or it did not answer in time."""


def in_a_fork(call: Callable[[], T]) -> T:
    """Run the call in a forked child and return its result, which must be picklable.

    A child forked from a process with threads may crash or hang in C code that another thread was running. It is
    then forked again, at most twice.
    """
    for _ in range(2):
        try:
            return _fork(call)
        except ForkCrashed:
            continue
    return _fork(call)


def _fork(call: Callable[[], T]) -> T:
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Python 3.12 warns of forking with threads, which is tested here
        child = os.fork()
    if child == 0:
        _run_in_child(call, writing)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        if not readable([pipe.fileno()], CHILD_TIMEOUT):
            os.kill(child, signal.SIGABRT)  # faulthandler, which pytest enables, prints where it hangs
        text = pipe.read()
    _, status = os.waitpid(child, 0)
    if not text:
        error = ForkCrashed if os.WIFSIGNALED(status) else ForkFailed
        raise error(f"the child died without an answer, status {status}")
    failed, value = pickle.loads(text)
    if failed:
        raise ForkFailed(value)
    result: T = value
    return result


def _run_in_child(call: Callable[[], object], writing: int) -> None:
    """Never returns, and never runs the exit handlers of the parent."""
    try:
        answer = pickle.dumps((False, call()))
    except BaseException:
        answer = pickle.dumps((True, traceback.format_exc()))
    with os.fdopen(writing, "wb") as pipe:
        pipe.write(answer)
    os._exit(0)
