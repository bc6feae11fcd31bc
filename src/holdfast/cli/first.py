"""The first process of a container, where ``holdfast`` is its command.

Whatever loses its parent there becomes a child of the first process, and once it has ended stays a zombie until that
has waited for it. A worker cannot wait for processes it does not know: it would take from its handlers how their own
programs ended. So the first process divides: one works, the other waits for all there are and passes signals on.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterable
from types import FrameType
from typing import NoReturn

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
