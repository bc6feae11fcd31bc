"""The set-up of a child process: die with the worker, limit memory, log like the worker."""

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
CHECK_EVERY = 1.0


# --- dying ---


def die() -> NoReturn:
    """Kill this process and its whole process group."""
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(1)


def die_with_parent() -> None:
    """Make the kernel (Linux only) kill this process when its parent dies, even while a handler holds the interpreter
    lock."""
    if sys.platform != "linux":
        return
    parent = os.getppid()
    try:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    except (OSError, AttributeError):
        return
    if os.getppid() != parent:  # the parent died before prctl was called
        die()


def listen(link: socket.socket, receive: Callable[[Message], object]) -> None:
    """Read the worker's messages in a thread, which also notices the death of the worker while a handler runs."""
    original = os.fstat(link.fileno())

    def receive_all() -> None:
        while _readable(link, original) and (message := read(link)) is not None:
            receive(message)
        die()

    threading.Thread(target=receive_all, name="holdfast-worker-watch", daemon=True).start()


def _readable(link: socket.socket, original: os.stat_result) -> bool:
    """Wait until there is something to read, or the end of the stream. False if the socket was closed in this process:
    a handler that closes every file (as daemons do) also closes those of the event loop, which never wakes again."""
    poll = select.poll()
    poll.register(link, select.POLLIN)
    while True:
        try:
            if not os.path.samestat(os.fstat(link.fileno()), original):
                break
        except OSError:
            break
        if poll.poll(CHECK_EVERY * 1_000):
            return True
    with contextlib.suppress(OSError):
        os.write(2, b"holdfast: a handler has closed the connection of its process to the worker; it ends\n")
    return False


# --- limits ---


def limit_memory(size: int | None) -> None:
    """Limit the data of this process: heap and anonymous mappings, not shared libraries. None removes the limit.

    Only the soft limit is set: it is a safety net against accidents, and has to be removed to report that it was
    reached.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    soft = hard if size is None else size if hard == resource.RLIM_INFINITY else min(size, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def lift_memory_limit() -> None:
    limit_memory(None)


# --- logging ---


def describe_logging() -> Message:
    """The level and the formatter of this program's log, as far as a child can use the same."""
    root = logging.getLogger()
    for handler in root.handlers:
        if isinstance(handler, logging.StreamHandler):
            formatter = handler.formatter
            kind = type(formatter)
            settings: Message = {"level": root.level, "class": [kind.__module__, kind.__qualname__]}
            if formatter is None or kind is logging.Formatter:
                dates = formatter and formatter.datefmt
                settings |= {"class": None, "form": formatter and formatter._fmt, "dates": dates}
            return settings
    return {}


def set_up_logging(settings: Message) -> None:
    """Log to stderr, which is the worker's. The handler's module may change the set-up when it is imported."""
    if not settings:
        return
    handler = logging.StreamHandler()
    handler.setFormatter(_formatter(settings))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(settings["level"])


def _formatter(settings: Message) -> logging.Formatter:
    if settings["class"] is None:
        return logging.Formatter(settings["form"], settings["dates"])
    module, name = settings["class"]
    try:
        kind: Any = getattr(importlib.import_module(module), name)
        formatter = kind()
    except Exception:  # a class that cannot be imported, or needs arguments
        return logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s")
    return formatter if isinstance(formatter, logging.Formatter) else logging.Formatter()
