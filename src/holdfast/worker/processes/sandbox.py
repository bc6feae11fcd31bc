"""What a child does to itself before it runs anything: die with its worker, keep within its limits, log as it does."""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import logging
import os
import resource
import select
import signal
import socket
import sys
import threading
from collections.abc import Callable
from typing import Any, NoReturn

from holdfast.worker.processes.protocol import Message, read

_PR_SET_PDEATHSIG = 1
LOOK_EVERY = 1.0


# --- dying ---


def die() -> NoReturn:
    """With everything that was started from here and did not leave the group."""
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(1)


def die_with_parent() -> None:
    """On Linux the kernel sees to it, even if the interpreter is held by something that does not let go of it."""
    if sys.platform != "linux":
        return
    parent = os.getppid()
    try:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    except (OSError, AttributeError):
        return
    if os.getppid() != parent:  # it was gone before the kernel knew
        die()


def listen(link: socket.socket, hear: Callable[[Message], object]) -> None:
    """Read the worker's messages in a thread, which also sees that the worker is gone, whatever the handler does."""
    ours = os.fstat(link.fileno())

    def hear_all() -> None:
        while _comes(link, ours) and (message := read(link)) is not None:
            hear(message)
        die()

    threading.Thread(target=hear_all, name="holdfast-worker-watch", daemon=True).start()


def _comes(link: socket.socket, ours: os.stat_result) -> bool:
    """Wait until there is something to read, be it the end. False when the line is not there any more: a handler that
    has closed every file (as daemons do) has closed this one and those of the event loop, which never wakes again."""
    coming = select.poll()
    coming.register(link, select.POLLIN)
    while True:
        try:
            if not os.path.samestat(os.fstat(link.fileno()), ours):
                break
        except OSError:
            break
        if coming.poll(LOOK_EVERY * 1_000):
            return True
    with contextlib.suppress(OSError):
        os.write(2, b"holdfast: a handler has closed the connection of its process to the worker; it ends\n")
    return False


# --- limits ---


def limit_memory(size: int | None) -> None:
    """The data of this process: heap and anonymous mappings, not the libraries it shares with others.

    Only the soft limit: it is a safety net against accidents, and has to be lifted to report that it was met.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    wanted = hard if size is None else size if hard == resource.RLIM_INFINITY else min(size, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (wanted, hard))


def lift_memory_limit() -> None:
    limit_memory(None)


# --- logging ---


def describe_logging() -> Message:
    """How this program logs, as far as a child can do the same: its level, and the form of its lines."""
    root = logging.getLogger()
    for handler in root.handlers:
        if isinstance(handler, logging.StreamHandler):
            form = handler.formatter
            kind = type(form)
            told: Message = {"level": root.level, "class": [kind.__module__, kind.__qualname__]}
            if form is None or kind is logging.Formatter:
                told |= {"class": None, "form": form and form._fmt, "dates": form and form.datefmt}
            return told
    return {}


def set_up_logging(told: Message) -> None:
    """To stderr, which is the worker's. What the handler's own module sets up comes later, and wins."""
    if not told:
        return
    handler = logging.StreamHandler()
    handler.setFormatter(_formatter(told))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(told["level"])


def _formatter(told: Message) -> logging.Formatter:
    if told["class"] is None:
        return logging.Formatter(told["form"], told["dates"])
    module, name = told["class"]
    try:
        kind: Any = getattr(importlib.import_module(module), name)
        made = kind()
    except Exception:  # one that cannot be made from nothing
        return logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s")
    return made if isinstance(made, logging.Formatter) else logging.Formatter()
