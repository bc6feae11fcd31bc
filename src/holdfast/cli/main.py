"""Entry point of the command line, its exit, and its role as PID 1 of a container.

A process that loses its parent becomes a child of PID 1, and remains a zombie until PID 1 waits for it. A worker cannot
wait for unknown processes: it would take the exit codes of programs that its handlers started. So PID 1 forks: the
child does the work, and the parent reaps all processes and forwards signals.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterable
from types import FrameType
from typing import NoReturn

from holdfast.worker.startup import prepare_process

FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)


def fork_init() -> None:
    """Return in a child process. This process becomes its init: it ends with the exit code of the child."""
    # Blocked until the handlers are installed, so that no signal is lost in between.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {*FORWARDED, signal.SIGTTOU})
    child = os.fork()
    if child == 0:
        _take_foreground()
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        return
    _reap(child, mask)


def _take_foreground() -> None:
    """Move to a new process group. Otherwise Ctrl-C would arrive twice, from the terminal and forwarded, and a second
    signal means "stop at once"."""
    os.setpgid(0, 0)
    with contextlib.suppress(OSError):  # there is no terminal
        os.tcsetpgrp(0, os.getpgrp())


def _reap(child: int, mask: Iterable[int]) -> NoReturn:
    def forward(number: int, _: FrameType | None) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, number)

    for number in FORWARDED:
        signal.signal(number, forward)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    while True:
        pid, status = os.wait()
        if pid == child:
            code = os.waitstatus_to_exitcode(status)
            os._exit(code if code >= 0 else 128 - code)


LIBRARIES = frozenset({"typer", "rich", "click", "shellingham"})
INSTALL = (
    "error: the command line needs an extra that is not installed [missing_extra]\nfix: pip install 'holdfast[cli]'"
)
# How long threads of handlers may delay the exit.
EXIT_TIMEOUT = 3.0


def run() -> NoReturn:
    prepare_process()
    if os.getpid() == 1:
        fork_init()
    try:
        from holdfast.cli.commands import tree_for
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in LIBRARIES:
            raise
        print(INSTALL, file=sys.stderr)
        sys.exit(2)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError):  # a replaced stream
            stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    code = 0
    try:
        tree_for(sys.argv[1:])(prog_name="holdfast")
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    leave(code)


def leave(code: int) -> NoReturn:
    """Exit. A handler's thread that does not end is abandoned: the interpreter would wait for it forever."""
    _flush_stderr()
    forced = threading.Timer(EXIT_TIMEOUT, _exit_at_once, (code,))
    forced.daemon = True
    forced.start()
    sys.exit(code)


def _flush_stderr() -> None:
    """Write buffered messages, or discard them if that fails. Otherwise the interpreter would try again at exit, and
    its failure would replace the exit code."""
    try:
        sys.stderr.flush()
    except OSError:
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())
    except (AttributeError, ValueError):  # a replaced stream, or none
        pass


def _exit_at_once(code: int) -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)
