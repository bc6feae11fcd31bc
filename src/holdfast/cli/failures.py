"""Print errors as ``error: message [code]`` with a fix, and map them to exit codes. Commands and options of other job
queues, and wrong subcommands, have fixes of their own.

0 ok · 1 failed · 2 usage · 3 not found · 4 conflict or refused · 130 Ctrl-C
"""

from __future__ import annotations

import difflib
import json
import logging
import re
from collections.abc import Callable
from typing import Any, Final

import typer

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
        show("usage", *_explained(error), as_json)
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


OTHER_COMMANDS: Final = {
    "beat": "Workers fire schedules; there is no beat process. List them: holdfast schedules list",
    "scheduler": "Workers fire schedules; there is no scheduler process. List them: holdfast schedules list",
    "purge": "Cancel waiting jobs: holdfast operations start cancel --state queued --reason TEXT",
    "inspect": "List workers: holdfast workers list. Watch them: holdfast top",
    "control": "Drain or stop a worker: holdfast workers drain ID, holdfast workers stop ID",
    "status": "Check the health: holdfast health. List workers: holdfast workers list",
    "flower": "Open the dashboard: holdfast serve MODULE:APP, or in development: holdfast dev MODULE:APP",
    "dashboard": "Open the dashboard: holdfast serve MODULE:APP, or in development: holdfast dev MODULE:APP",
    "multi": "Start several processes: holdfast worker MODULE:APP --processes N",
    "call": 'Enqueue a job: holdfast enqueue KIND \'{"name": "value"}\'',
    "result": "Show a job with its result: holdfast jobs show ID",
    "upgrade": "Create or update the tables: holdfast migrate",
    "init": "Create or update the tables: holdfast migrate",
    "run": "Run jobs: holdfast worker MODULE:APP",
    "start": "Run jobs: holdfast worker MODULE:APP",
    "retry": "Run dead letters again: holdfast dead-letters redrive GROUP, or one job: holdfast jobs redrive ID",
    "revoke": "Cancel a job: holdfast jobs cancel ID",
    "list": "List jobs: holdfast jobs list",
    "show": "Show a job: holdfast jobs show ID",
    "cancel": "Cancel a job: holdfast jobs cancel ID",
    "redrive": "Run dead letters again: holdfast dead-letters redrive GROUP, or one job: holdfast jobs redrive ID",
}
"""Commands that do not exist, and what to use."""

_APP = "Name the app without an option, as MODULE:APP: holdfast worker shop.jobs:app"
_LEVEL = "Use --log-level info"
_POOL = "Handlers run in threads or on the event loop. For several processes: --processes N"
_BEAT = "Leave it out: workers fire schedules"
OTHER_OPTIONS: Final = {
    "-A": _APP,
    "--app": _APP,
    "-Q": "Use --queues mail,default",
    "--queue": "Use --queues mail,default",
    "-q": "Use --queues mail,default",
    "-c": "Use --concurrency N",
    "-j": "Use --concurrency N",
    "-l": _LEVEL,
    "--loglevel": _LEVEL,
    "-P": _POOL,
    "--pool": _POOL,
    "--autoscale": _POOL,
    "-B": _BEAT,
    "--beat": _BEAT,
    "--max-tasks-per-child": "Use --max-jobs N",
}
"""Options that do not exist for the commands that run jobs, and what to use."""
RUNNING_JOBS: Final = frozenset({"holdfast", "worker", "dev", "tick", "serve"})

SYNONYMS: Final = (
    ("create", "add", "issue", "new", "register", "put", "set", "start"),
    ("delete", "remove", "revoke", "rm", "release", "discard", "cancel"),
    ("show", "get", "describe", "info"),
    ("list", "ls", "all"),
    ("edit", "update", "change", "set", "put"),
    ("redrive", "retry", "requeue"),
    ("run", "trigger", "fire"),
)
"""Names of subcommands with the same meaning, the most common first."""


def _explained(error: Any) -> tuple[str, str]:
    """The message and the fix for an error of Typer. The module of its classes depends on its version."""
    message = error.format_message().replace("Value error, ", "")
    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else "holdfast"
    see = f"See: {path} --help"
    if wrong := re.match(r"No such command '([^']+)'", message):
        return _wrong_command(wrong[0] + ".", wrong[1], context, message, see)
    if wrong := re.match(r"No such option:? '?(-[^\s'=]+)", message):
        name = path.rpartition(" ")[2]
        fix = OTHER_OPTIONS.get(wrong[1]) if name in RUNNING_JOBS else None
        if fix is not None and wrong[1] in ("-A", "--app") and name not in ("holdfast", "worker"):
            fix = fix.replace("holdfast worker", path)
        return (f"No such option: {wrong[1]}", f"{fix}. {see}") if fix else (message, see)
    if wrong := re.match(r"Got unexpected extra argument\(?s?\)? \(([^\s)]+)", message):
        flags = {flag for parameter in context.command.params for flag in parameter.opts} if context else set()
        if {"--queue", "--kind"} <= flags:
            return message, f"Name it with an option: --kind {wrong[1]}, or --queue {wrong[1]}. {see}"
    if wrong := re.search(r"'([^']*)' is not one of (.+)", message):
        choices = re.findall(r"'([^']+)'", wrong[2])
        close = [choice for choice in choices if choice.startswith(wrong[1][:50] or " ")]
        close = close or difflib.get_close_matches(wrong[1][:50], choices, 1)
        if close:
            return message, f"Did you mean {close[0]}? {see}"
    return message, see


def _wrong_command(short: str, name: str, context: Any, message: str, see: str) -> tuple[str, str]:
    """A command that does not exist. Below the root, name those that do."""
    if context is None or context.parent is None:
        return (short, f"{OTHER_COMMANDS[name]}. {see}") if name in OTHER_COMMANDS else (message, see)
    names = context.command.list_commands(context)
    same = [other for words in SYNONYMS if name in words for other in words if other in names]
    use = f"Use: {context.command_path} {same[0]}. " if same else ""
    return short, f"{use}Commands: {', '.join(names)}. {see}"
