"""Options that commands share, and values from arguments, files and stdin."""

from __future__ import annotations

import dataclasses
import re
import sys
from collections.abc import Sequence
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from holdfast import config
from holdfast.cli.output import duration, since
from holdfast.engine.declared import Help
from holdfast.engine.json_schema import as_json
from holdfast.engine.names import check_name
from holdfast.engine.payload import decode
from holdfast.engine.states import State
from holdfast.errors import InvalidPayload, InvalidSetting
from holdfast.kind import PAYLOAD_LIMIT
from holdfast.stores.job_filters import BY_NAME, FILTERS, Filter, checked

Url = Annotated[str | None, Help("Database URL: sqlite:///jobs.db or postgresql://… (or HOLDFAST_URL).", "URL")]
Tenant = Annotated[str | None, Help("The tenant (or HOLDFAST_TENANT; else 'default').", "NAME")]
AllTenants = Annotated[bool, Help("All tenants, if the database role may read them.")]
Schema = Annotated[str, Help("PostgreSQL schema.", "NAME")]
Json = Annotated[bool, Help("Print only JSON on stdout.", option="--json")]
Limit = Annotated[int, Help("Maximum number of results.", "N", low=1, high=1000)]
After = Annotated[str | None, Help("Next page: the id of the last entry on this one.", "CURSOR")]
Reason = Annotated[str | None, Help("The reason, recorded in the ledger.", "TEXT")]

SCHEMA = "holdfast"


class Level(StrEnum):
    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


# Options of the commands that run jobs.
AppName = Annotated[str, typer.Argument(metavar="MODULE:APP", help="Location of the App, for example shop.jobs:app.")]
AppUrl = Annotated[str | None, Help("Database URL for an app without one.", "URL")]
Queues = Annotated[
    str,
    Help("Queues to serve, in order; mail:3,default shares by weight; all (the default): every declared one.", "A,B"),
]
Concurrency = Annotated[int, Help("Number of jobs to run at once.", "N", low=1, high=10_000)]
Served = Annotated[str | None, Help("Only this tenant (or HOLDFAST_TENANT).", "NAME")]
ServeAll = Annotated[bool, Help("Serve every tenant (the default).")]
Lease = Annotated[str, Help("Lease duration: jobs are recovered this long after a crash.", "SPAN")]
Executor = Annotated[str, Help("Executor label of its leases.", "LABEL")]


class LogFormat(StrEnum):
    TEXT = "text"
    JSON = "json"


LogForm = Annotated[LogFormat | None, Help("Log format: text or json (or HOLDFAST_LOG_FORMAT).", "FORM")]
MetricsPort = Annotated[int | None, Help("Serve /metrics, /livez and /readyz on this port.", "PORT", low=0, high=65535)]
MetricsHost = Annotated[str, Help("Address for the metrics port; it requires no login.", "ADDRESS")]
LogLevel = Annotated[Level, Help(f"Log level: {', '.join(Level)}.", "LEVEL")]

EXECUTOR = "worker"
LOOPBACK = "127.0.0.1"


def logs_json(form: LogFormat | None, as_json: bool) -> bool:
    """Whether log lines are JSON: by ``--log-format``, else by ``--json``, else by the environment."""
    if form is not None:
        return form is LogFormat.JSON
    return as_json or config.log_format() == "json"


def examples(*commands: str) -> str:
    """Return an epilog with examples. The ``\\b`` at its start keeps Typer from wrapping its lines."""
    return "\n".join(["\b", "Examples:", *(f"  {command}" for command in commands)])


def listed(text: str | None) -> tuple[str, ...]:
    """Split ``a,b`` into its parts."""
    return tuple(part.strip() for part in (text or "").split(",") if part.strip())


# Looks like a misspelled weight. Taken as the name of a queue, it would serve no jobs.
_LIKE_A_WEIGHT = re.compile(r".+[:=]\s*[-+]?[0-9.]+%?")


ALL_QUEUES = "all"


def queues_of(text: str) -> tuple[tuple[str, ...], dict[str, int] | None]:
    """Parse ``mail:3,default`` into queues and their weights, which are None if none is given.

    ``all`` returns no queues, which means every declared queue to a worker. A number after the last colon is a weight:
    a queue that is named ``mail:3`` is written ``mail:3:1``.
    """
    if text.strip() == ALL_QUEUES:
        return (), None
    weights: dict[str, int] = {}
    weighted = False
    for part in listed(text):
        name, colon, number = part.rpartition(":")
        if colon and number.isascii() and number.isdecimal():
            weighted = True
        elif _LIKE_A_WEIGHT.fullmatch(part):
            raise InvalidSetting(
                f"the weight of {part!r} is not a whole number",
                code="invalid_weight",
                fix=f"Write mail:3. If that is the queue's name, write {part}:1.",
            )
        else:
            name, number = part, "1"
        weights[check_name(name, "queue")] = int(number[:10])
    if not weights:
        raise InvalidSetting("no queue named", code="invalid_name")
    return tuple(weights), weights if weighted else None


def positive(text: str, what: str) -> float:
    """Parse a duration of at least 10 ms."""
    value = duration(text, what)
    if value < 0.01:
        raise InvalidSetting(f"the {what} must be at least 10 ms", code="invalid_duration")
    return value


# Escapes and spaces may make the text longer than the stored payload. More than this is not read.
READ_LIMIT = 8 * PAYLOAD_LIMIT
_DOCUMENT = ("{", "[", '"', "@")


def document(argument: str) -> Any:
    """Parse JSON from the argument, a file (``@path``) or stdin (``-``)."""
    return decode(text_of(argument))


def text_of(argument: str) -> str | bytes:
    """Return the argument, or the content of a file (``@path``) or of stdin (``-``)."""
    if argument == "-":
        return _bounded(sys.stdin.buffer.read(READ_LIMIT + 1))
    if not argument.startswith("@"):
        return argument
    path = argument[1:]
    try:
        with Path(path).open("rb") as file:
            return _bounded(file.read(READ_LIMIT + 1))
    except OSError as error:
        raise InvalidPayload(f"cannot read {path!r}: {error.strerror or error}", code="unreadable_file") from error


def _bounded(content: bytes) -> bytes:
    if len(content) > READ_LIMIT:
        raise InvalidPayload(f"the payload is larger than {READ_LIMIT:,} bytes", code="payload_too_large")
    return content


def secret_of(argument: str) -> str:
    """Return the argument, or a line of stdin (``-``), which keeps a secret out of the shell's history."""
    if argument != "-":
        return argument
    return sys.stdin.buffer.readline(1_000).decode(errors="replace").strip()


def parse_pairs(arguments: Sequence[str]) -> dict[str, str]:
    """Parse ``name=value`` arguments. A name may occur once; the value is everything after the first ``=``."""
    values: dict[str, str] = {}
    for pair in arguments:
        name, sign, value = pair.partition("=")
        if not sign or not name:
            raise typer.BadParameter(f"{pair!r} is not of the form name=value")
        if name in values:
            raise InvalidSetting(f"{name!r} was given twice", code="conflicting_options")
        values[name] = value
    return values


def data_of(arguments: Sequence[str]) -> Any:
    """Parse a JSON document, any number of ``name=value``, or both: the values are added to the document.

    A value that is JSON is parsed as JSON: ``invoice=7`` is a number, ``'invoice="7"'`` is text.
    """
    has_document = bool(arguments) and _is_document(arguments[0])
    values = {name: as_json(value) for name, value in parse_pairs(arguments[has_document:]).items()}
    return merged(document(arguments[0]) if has_document else {}, values)


def merged(data: Any, values: dict[str, Any]) -> Any:
    """Add values to a JSON object. Raises ``InvalidSetting`` if ``data`` is not one."""
    if values and not isinstance(data, dict):
        raise InvalidSetting(
            "values can be added by name only to a JSON object",
            code="conflicting_options",
            fix="Pass only one of them.",
        )
    return data | values if values else data


def _is_document(argument: str) -> bool:
    return argument == "-" or argument.startswith(_DOCUMENT) or "=" not in argument


Kind = Annotated[str | None, Help("Only jobs of this kind.", "NAME")]
Queue = Annotated[str | None, Help("Only jobs in this queue.", "NAME")]


class _JobOptions:
    """Options that select jobs, one for each filter of ``stores/job_filters.py`` but the state."""

    def wanted(self, now: datetime) -> dict[str, Any]:
        """Return the options that were given, as fields of a filter. Durations are times before ``now``."""
        texts = {each: getattr(self, each.name) for each in FILTERS if each.name != "state"}
        given = {
            each.name: since(text, each.option, lambda: now) if each.values == "time" else each.check(text)
            for each, text in texts.items()
            if text
        }
        return checked(given, frozenset(given))


def _option(each: Filter) -> tuple[str, Any, Any]:
    value: Any = {"texts": list[str], "number": int}.get(each.values, str)
    option = typer.Option(each.option, metavar=each.metavar, help=each.help)
    return each.name, Annotated[value | None, option], dataclasses.field(default=None)


JobState = Annotated[State | None, Help(BY_NAME["state"].help, "STATE")]
JobFilterOptions: Any = dataclasses.make_dataclass(
    "JobFilterOptions",
    [_option(each) for each in FILTERS if each.name != "state"],
    bases=(_JobOptions,),
    frozen=True,
    kw_only=True,
)
