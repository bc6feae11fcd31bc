"""Log lines as JSON, one object a line (JF-13): ``holdfast.configure_logging()``, or ``JsonLines`` in your own set-up.

Invariant (rule 30): whatever a record holds, its line is one line without control characters, and without what is known
to be secret: by its name (``password=…``, ``extra={"token": …}``), its shape, or its value (those of the environment,
of every app of this process, and of the job in hand).
"""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Final, TextIO
from weakref import WeakSet

from holdfast import config
from holdfast.context import current_run
from holdfast.engine.job import log_fields
from holdfast.engine.redaction import HIDDEN, LINE_LIMIT, Redactor, one_line
from holdfast.engine.settlement import TRACEBACK_LIMIT
from holdfast.errors import InvalidSetting
from holdfast.telemetry import observers, tracing
from holdfast.telemetry.tracebacks import traceback_of, type_name

MOST_EXTRAS: Final = 32
NAME_LIMIT: Final = 60
LEVELS: Final = ("debug", "info", "warning", "error")

# What every record has; anything else somebody put there on purpose.
_USUAL: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
# Names that a line has already, or that ours go under another.
_OURS: Final = {"job_id": "job"}
_FIRST: Final = ("worker", "trace_id", "span_id", "job", "kind", "queue", "tenant", "attempt", "duration", "error")
_RESERVED: Final = frozenset({"timestamp", "level", "logger", "message", "traceback", "process"})

_known: WeakSet[Redactor] = WeakSet()


def trust(redactor: Redactor) -> None:
    """What this one knows to be secret is in no line from now on."""
    _known.add(redactor)


def redact_line(text: str, limit: int = LINE_LIMIT) -> str:
    """Without the secrets of the job in hand, and of every app of this process."""
    job = current_run()
    for redact in _redactors():
        text = redact(text, limit)
    return text if job is None else job.redact(text, limit)


def trusted_redactor() -> Redactor:
    """The redactor of this process's app, or one that knows the environment: for a process that runs handlers alone."""
    return _redactors()[-1]


def _redactors() -> list[Redactor]:
    return list(_known) or [_own()]


def _own() -> Redactor:
    """For a process without an app: what the environment says."""
    global _environment
    if _environment is None:
        _environment = Redactor()
        _environment.know(*_environment.in_environment(config.environment()), *config.key_values())
    return _environment


_environment: Redactor | None = None


class JsonLines(logging.Formatter):
    """``process`` is the number of one of several worker processes whose lines come out together.

    In a ``dictConfig``: ``{"formatters": {"json": {"()": "holdfast.telemetry.logs.JsonLines"}}}``.
    """

    def __init__(self, process: int | None = None) -> None:
        super().__init__()
        self._process: dict[str, object] = {} if process is None else {"process": process}

    def format(self, record: logging.LogRecord) -> str:
        try:
            message = record.getMessage()
        except Exception as error:  # arguments that do not fit: the line says so instead of being lost
            message = f"{record.msg!s} (its arguments do not fit: {type_name(error)})"
        values: dict[str, object] = {
            "timestamp": datetime.fromtimestamp(record.created, UTC).isoformat().replace("+00:00", "Z"),
            "level": str(record.levelname).lower(),
            "logger": one_line(str(record.name), NAME_LIMIT),
            "message": one_line(redact_line(message)),
            **_fields(record),
            **self._process,
        }
        trace = redacted_traceback(record)
        if trace:
            values["traceback"] = trace
            values.setdefault("error", _error_type(record))
        return json.dumps({name: value for name, value in values.items() if value is not None})


def redacted_traceback(record: logging.LogRecord) -> str | None:
    """The one a job's own log has redacted already, else that of the exception."""
    if record.exc_text:
        return redact_line(record.exc_text, TRACEBACK_LIMIT)
    error = record.exc_info[1] if record.exc_info else None
    return None if error is None else traceback_of(error, redact_line)


def _error_type(record: logging.LogRecord) -> str | None:
    error = record.exc_info[1] if record.exc_info else None
    return None if error is None else type_name(error)


def _fields(record: logging.LogRecord) -> dict[str, object]:
    """What the record says besides its message, what is known of the job in hand, and where we are."""
    said = {_OURS.get(name, name): value for name, value in vars(record).items() if name not in _USUAL}
    job = current_run()
    if "job" not in said and job is not None:
        said = {_OURS.get(name, name): value for name, value in log_fields(job.claim).items()} | said
    said.setdefault("worker", observers.working_as.get())
    trace = tracing.current_trace()
    if trace is not None and "trace_id" not in said:
        said |= {"trace_id": trace.trace_id, "span_id": trace.span_id}
    ordered = [name for name in _FIRST if name in said] + [name for name in said if name not in _FIRST]
    return {_name(name): _value(name, said[name]) for name in ordered[: len(_FIRST) + MOST_EXTRAS]}


def _name(name: str) -> str:
    shown = one_line(str(name), NAME_LIMIT)
    return f"{shown}_" if shown in _RESERVED else shown


def _value(name: str, value: object) -> object:
    if value is None or isinstance(value, bool):
        return value
    if any(redactor.looks_secret(name) for redactor in _redactors()):
        return HIDDEN
    if isinstance(value, int | float):
        return _finite(value)
    try:
        text = value if isinstance(value, str) else repr(value)
    except Exception:
        text = f"<{type(value).__name__}>"
    return one_line(redact_line(text))


def _finite(value: object) -> object:
    """JSON has no NaN and no infinity."""
    return str(value) if isinstance(value, float) and (value != value or abs(value) == float("inf")) else value


def configure_logging(
    *, json: bool = True, level: str = "info", jobs: bool = True, stream: TextIO | None = None
) -> logging.Handler:
    """Log to stderr (or ``stream``), as JSON lines or as text; called again, it replaces what it set up before.

    Handlers that you have set up stay. ``jobs`` has a line for every attempt that ends, with its duration; without it,
    only failures have one.
    """
    if str(level).lower() not in LEVELS:
        raise InvalidSetting(f"the level must be one of {', '.join(LEVELS)}, not {level!r}", code="unknown_option")
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.set_name(HANDLER)
    handler.setFormatter(JsonLines() if json else PlainLines())
    root = logging.getLogger()
    root.handlers[:] = [other for other in root.handlers if other.get_name() != HANDLER] + [handler]
    root.setLevel(level.upper())
    logging.getLogger("holdfast.jobs").setLevel(logging.INFO if jobs else logging.WARNING)
    quieten()
    return handler


HANDLER: Final = "holdfast"


class PlainLines(logging.Formatter):
    """The same for people: time, level, logger, message."""

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, UTC).strftime("%H:%M:%S.%f")[:-3]
        text = f"{at} {record.levelname.lower():<7} {record.name}: {one_line(redact_line(record.getMessage()))}"
        trace = redacted_traceback(record)
        return f"{text}\n{trace}" if trace else text


def quieten() -> None:
    """What others say about every connection and callback is of no use below a warning."""
    for name in ("psycopg", "psycopg.pool", "asyncio"):
        logging.getLogger(name).setLevel(logging.WARNING)
