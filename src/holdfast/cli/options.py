"""The options that many commands share, each written once."""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Annotated

import typer

from holdfast import config
from holdfast.cli.words import duration
from holdfast.engine.names import check_name
from holdfast.errors import InvalidSetting

Url = Annotated[
    str | None,
    typer.Option("--url", metavar="URL", help="The database: sqlite:///jobs.db or postgresql://… (or HOLDFAST_URL)."),
]
Tenant = Annotated[
    str | None,
    typer.Option("--tenant", metavar="NAME", help="The tenant (or HOLDFAST_TENANT; else 'default')."),
]
AllTenants = Annotated[bool, typer.Option("--all-tenants", help="Every tenant, where the role may.")]
Schema = Annotated[str, typer.Option("--schema", metavar="NAME", help="The schema on PostgreSQL.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, and nothing else on stdout.")]
Limit = Annotated[int, typer.Option("--limit", metavar="N", min=1, max=1000, help="How many at most.")]
After = Annotated[
    str | None, typer.Option("--after", metavar="CURSOR", help="The next page: the id of the last one seen.")
]
Reason = Annotated[str | None, typer.Option("--reason", metavar="TEXT", help="Why; it is kept in the ledger.")]
NeededReason = Annotated[str, typer.Option("--reason", metavar="TEXT", help="Why; it is kept in the ledger.")]
JobId = Annotated[str, typer.Argument(metavar="ID", help="A job's id, in full.")]
GateId = Annotated[str, typer.Argument(metavar="ID", help="A gate's id, in full.")]
GateOrToken = Annotated[
    str, typer.Argument(metavar="ID|TOKEN", help="A gate's id, a token of it, or - for a token on stdin.")
]
JobIds = Annotated[list[str], typer.Argument(metavar="ID…", help="Ids of jobs, in full.")]

SCHEMA = "holdfast"


class Level(StrEnum):
    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


# Of the commands that run jobs.
AppName = Annotated[str, typer.Argument(metavar="MODULE:APP", help="Where the App is, for example shop.jobs:app.")]
AppUrl = Annotated[str | None, typer.Option("--url", metavar="URL", help="For an app that names no database.")]
Queues = Annotated[
    str,
    typer.Option(
        "--queues", metavar="A,B", help="The queues to serve, the first first; mail:3,default shares out by weight."
    ),
]
Concurrency = Annotated[int, typer.Option("--concurrency", metavar="N", min=1, max=10_000, help="Jobs at a time.")]
Served = Annotated[str | None, typer.Option("--tenant", metavar="NAME", help="Only this tenant (or HOLDFAST_TENANT).")]
ServeAll = Annotated[bool, typer.Option("--all-tenants", help="Serve every tenant (the default).")]
Lease = Annotated[str, typer.Option("--lease", metavar="SPAN", help="Free its jobs this long after a crash.")]
Executor = Annotated[str, typer.Option("--executor", metavar="LABEL", help="What its leases are labelled with.")]


class LogFormat(StrEnum):
    TEXT = "text"
    JSON = "json"


LogForm = Annotated[
    LogFormat | None,
    typer.Option("--log-format", metavar="FORM", help="Log lines as text or json (or HOLDFAST_LOG_FORMAT)."),
]
MetricsPort = Annotated[
    int | None,
    typer.Option("--metrics-port", metavar="PORT", min=0, max=65535, help="Serve GET /metrics of this process there."),
]
MetricsHost = Annotated[
    str, typer.Option("--metrics-host", metavar="ADDRESS", help="The address to serve it on; it asks for no log-in.")
]
LogLevel = Annotated[Level, typer.Option("--log-level", metavar="LEVEL", help=f"What to log: {', '.join(Level)}.")]

EXECUTOR = "worker"
LOOPBACK = "127.0.0.1"


def logs_json(form: LogFormat | None, as_json: bool) -> bool:
    """Whether log lines are JSON: as said, else as for the rest of the output, else as the environment says."""
    if form is not None:
        return form is LogFormat.JSON
    return as_json or config.log_format() == "json"


def examples(*commands: str) -> str:
    """An epilog; the mark at its beginning keeps its lines as they are."""
    return "\n".join(["\b", "Examples:", *(f"  {command}" for command in commands)])


def listed(text: str | None) -> tuple[str, ...]:
    """``a,b`` as its parts."""
    return tuple(part.strip() for part in (text or "").split(",") if part.strip())


# What somebody means as a weight who does not know how it is written: served as a name it would find nothing.
_LIKE_A_WEIGHT = re.compile(r".+[:=]\s*[-+]?[0-9.]+%?")


def queues_of(text: str) -> tuple[tuple[str, ...], dict[str, int] | None]:
    """``mail:3,default`` as the queues and their weights; no weights if none is given.

    A number after the last colon is a weight; a queue that is really called ``mail:3`` is written ``mail:3:1``.
    """
    weights: dict[str, int] = {}
    weighted = False
    for part in listed(text):
        name, colon, number = part.rpartition(":")
        if colon and number.isascii() and number.isdecimal():
            weighted = True
        elif _LIKE_A_WEIGHT.fullmatch(part):
            raise InvalidSetting(
                f"{part!r} has no weight that is a whole number",
                code="invalid_weight",
                fix=f"Write mail:3; a queue that is really called so is written {part}:1.",
            )
        else:
            name, number = part, "1"
        weights[check_name(name, "queue")] = int(number[:10])
    if not weights:
        raise InvalidSetting("name a queue to serve", code="invalid_name")
    return tuple(weights), weights if weighted else None


def positive(text: str, what: str) -> float:
    """A span that is long enough to wait for."""
    value = duration(text, what)
    if value < 0.01:
        raise InvalidSetting(f"the {what} must be at least 10 ms", code="invalid_duration")
    return value
