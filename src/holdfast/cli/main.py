"""Entry point, exit codes, PID 1 duties.

The first process of a container, where ``holdfast`` is its command.

Whatever loses its parent there becomes a child of the first process, and once it has ended stays a zombie until that
has waited for it. A worker cannot wait for processes it does not know: it would take from its handlers how their own
programs ended. So the first process divides: one works, the other waits for all there are and passes signals on.
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

from holdfast.worker.startup import put_right

PASSED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)


def step_aside() -> None:
    if os.getpid() == 1:
        divide()


def divide() -> None:
    """Returns in the process that works. The other ends when that one has, as it did."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {*PASSED_ON, signal.SIGTTOU})  # none may come in between
    working = os.fork()
    if working == 0:
        _to_the_fore()
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return
    _wait_for_all(working, before)


def _to_the_fore() -> None:
    """A group of its own: a Ctrl-C would come twice, from the terminal and passed on, which means "at once"."""
    os.setpgid(0, 0)
    with contextlib.suppress(OSError):  # there is no terminal
        os.tcsetpgrp(0, os.getpgrp())


def _wait_for_all(working: int, before: Iterable[int]) -> NoReturn:
    def pass_on(number: int, _: FrameType | None) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(working, number)

    for number in PASSED_ON:
        signal.signal(number, pass_on)
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    while True:
        pid, status = os.wait()
        if pid == working:
            code = os.waitstatus_to_exitcode(status)
            os._exit(code if code >= 0 else 128 - code)


LIBRARIES = frozenset({"typer", "rich", "click", "shellingham"})
INSTALL = (
    "error: the command line needs an extra that is not installed [missing_extra]\nfix: pip install 'holdfast[cli]'"
)
LAST_WAIT = 3.0


def run() -> NoReturn:
    put_right()
    step_aside()
    try:
        from holdfast.cli.commands import tree_for
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in LIBRARIES:
            raise
        print(INSTALL, file=sys.stderr)
        sys.exit(2)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError):  # somebody's own stream
            stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    code = 0
    try:
        tree_for(sys.argv[1:])(prog_name="holdfast")
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    leave(code)


def leave(code: int) -> NoReturn:
    """Exit; if a handler's thread will not end, without it. The interpreter would wait for it for ever."""
    _let_go_of_messages()
    forced = threading.Timer(LAST_WAIT, _exit_at_once, (code,))
    forced.daemon = True
    forced.start()
    sys.exit(code)


def _let_go_of_messages() -> None:
    """Those that cannot be written are lost. The interpreter would try again, and make an exit code of that."""
    try:
        sys.stderr.flush()
    except OSError:
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())
    except (AttributeError, ValueError):  # somebody's own stream, or none
        pass


def _exit_at_once(code: int) -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)
