"""What a process finds when it is started, and must not depend on: open streams, and being told how children end."""

from __future__ import annotations

import os
import signal
import sys


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
