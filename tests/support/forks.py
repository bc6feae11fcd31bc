"""Running something in a forked copy of this process, as pre-forking servers do with the whole program."""

from __future__ import annotations

import os
import pickle
import select
import signal
import traceback
import warnings
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

ANSWERS_WITHIN = 30.0


class ForkFailed(AssertionError):
    """What went wrong in the child, as text."""


class ForkCrashed(ForkFailed):
    """A signal killed the child before it answered, or it never answered."""


def in_a_fork(call: Callable[[], T]) -> T:
    """Call it in a child of this process and answer what it returned (which must be picklable).

    A child forked from a process with threads may crash or wait for ever in C code that another thread was running:
    then it is forked again, twice at most.
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
        warnings.simplefilter("ignore")  # Python 3.12 warns of forking with threads, which is the point here
        child = os.fork()
    if child == 0:
        _answer(call, writing)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        if not select.select([pipe], [], [], ANSWERS_WITHIN)[0]:
            os.kill(child, signal.SIGKILL)
        text = pipe.read()
    _, status = os.waitpid(child, 0)
    if not text:
        kind = ForkCrashed if os.WIFSIGNALED(status) else ForkFailed
        raise kind(f"the child died without an answer, status {status}")
    failed, value = pickle.loads(text)
    if failed:
        raise ForkFailed(value)
    result: T = value
    return result


def _answer(call: Callable[[], object], writing: int) -> None:
    """In the child: never returns, and never runs what the parent has registered for its exit."""
    try:
        answer = pickle.dumps((False, call()))
    except BaseException:
        answer = pickle.dumps((True, traceback.format_exc()))
    with os.fdopen(writing, "wb") as pipe:
        pipe.write(answer)
    os._exit(0)
