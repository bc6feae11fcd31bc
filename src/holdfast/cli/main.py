"""The entry point ``holdfast``. It imports no library of the ``cli`` extra before it knows that there is one."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from typing import NoReturn

from holdfast.cli.first import step_aside
from holdfast.worker.startup import put_right

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
