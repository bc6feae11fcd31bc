"""Print errors as ``error: message [code]`` with a fix, and map them to exit codes.

0 ok · 1 failed · 2 usage · 3 not found · 4 conflict or refused · 130 Ctrl-C
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from typing import Any

import typer

from holdfast.cli import hints
from holdfast.cli.output import logs_are_json, say
from holdfast.errors import HoldfastError, InvalidInput, NotFound, Refused

log = logging.getLogger("holdfast.cli")

OK, FAILED, USAGE, NOT_FOUND, REFUSED, INTERRUPTED = 0, 1, 2, 3, 4, 130


def exit_code(error: HoldfastError) -> int:
    if isinstance(error, InvalidInput):
        return USAGE
    if isinstance(error, NotFound):
        return NOT_FOUND
    return REFUSED if isinstance(error, Refused) else FAILED


def guarded(command: Callable[[], Any], *, as_json: bool) -> int:
    """Run a command and return its exit code. An error of Holdfast is printed in two lines, without a traceback."""
    try:
        result = command()
        return result if isinstance(result, int) else OK
    except HoldfastError as error:
        show(error.code, error.message, error.fix, as_json)
        return exit_code(error)
    except typer.Abort:
        return INTERRUPTED
    except KeyboardInterrupt:
        return INTERRUPTED
    except Exception as error:
        if not callable(getattr(error, "format_message", None)):
            raise
        return _usage(error, as_json)


def _usage(error: Any, as_json: bool) -> int:
    """Print an error of Typer, such as an unknown option."""
    if type(error).__name__ == "NoArgsIsHelpError":
        error.show()
    else:
        show("usage", *hints.usage(error), as_json)
    return int(error.exit_code)


def show(code: str, message: str, fix: str | None, as_json: bool) -> None:
    if as_json:
        say(json.dumps({"error": {"code": code, "message": message, "fix": fix}}))
        return
    if logs_are_json():
        log.error("%s", message, extra={"code": code, "fix": fix})
        return
    say(f"error: {message} [{code}]")
    if fix:
        say(f"fix: {fix}")
