"""Log lines as JSON, one object per line: ``holdfast.configure_logging()``, or ``JsonLines`` in your own set-up.

Invariant: every record becomes one line without control characters and without known secrets. A secret is known by its
name (``password=…``, ``extra={"token": …}``), its shape, or its value (in the environment, in an app of this process,
or among the arguments of the running job).
"""

from __future__ import annotations

import json
import logging
import re
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
from holdfast.telemetry import observers
from holdfast.telemetry.tracebacks import traceback_of, type_name

MOST_EXTRAS: Final = 32
NAME_LIMIT: Final = 60
HANDLER: Final = "holdfast"
LEVELS: Final = ("debug", "info", "warning", "error")

# The attributes of every record; all others are extras.
_STANDARD: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
# Fields that have another name in a line.
_RENAMED: Final = {"job_id": "job"}
_FIRST: Final = ("worker", "trace_id", "span_id", "job", "kind", "queue", "tenant", "attempt", "duration", "error")
_RESERVED: Final = frozenset({"timestamp", "level", "logger", "message", "traceback", "process"})

_known: WeakSet[Redactor] = WeakSet()


def redact_with(redactor: Redactor) -> None:
    """Redact all later lines with this redactor too."""
    _known.add(redactor)


def redact_line(text: str, limit: int = LINE_LIMIT) -> str:
    """The text without the secrets of the running job, and of every app of this process."""
    job = current_run()
    for redact in _redactors():
        text = redact(text, limit)
    return text if job is None else job.redact(text, limit)


def trusted_redactor() -> Redactor:
    """The redactor of this process's app, or one that knows the environment. For a process that only runs handlers."""
    return _redactors()[-1]


def _redactors() -> list[Redactor]:
    return list(_known) or [_environment_redactor()]


def _environment_redactor() -> Redactor:
    """For a process without an app: a redactor that knows the secrets in the environment."""
    global _environment
    if _environment is None:
        _environment = Redactor()
        _environment.know(*_environment.in_environment(config.environment()), *config.key_values())
    return _environment


_environment: Redactor | None = None


class JsonLines(logging.Formatter):
    """``process`` is the number of a worker process, if several write to the same stream.

    In a ``dictConfig``: ``{"formatters": {"json": {"()": "holdfast.telemetry.logs.JsonLines"}}}``.
    """

    def __init__(self, process: int | None = None) -> None:
        super().__init__()
        self._process: dict[str, object] = {} if process is None else {"process": process}

    def format(self, record: logging.LogRecord) -> str:
        try:
            message = record.getMessage()
        except Exception as error:  # wrong arguments: the line must not be lost
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
    """The traceback of a record: the text that ``ctx.log`` has redacted already, else that of the exception."""
    if record.exc_text:
        return redact_line(record.exc_text, TRACEBACK_LIMIT)
    error = record.exc_info[1] if record.exc_info else None
    return None if error is None else traceback_of(error, redact_line)


def _error_type(record: logging.LogRecord) -> str | None:
    error = record.exc_info[1] if record.exc_info else None
    return None if error is None else type_name(error)


def _fields(record: logging.LogRecord) -> dict[str, object]:
    """The fields of a line other than its message: the extras of the record, the running job, the worker and the
    trace."""
    fields = {_RENAMED.get(name, name): value for name, value in vars(record).items() if name not in _STANDARD}
    job = current_run()
    if "job" not in fields and job is not None:
        fields = {_RENAMED.get(name, name): value for name, value in log_fields(job.claim).items()} | fields
    fields.setdefault("worker", observers.working_as.get())
    trace = observers.current_trace()
    if trace is not None and "trace_id" not in fields:
        fields |= {"trace_id": trace.trace_id, "span_id": trace.span_id}
    ordered = [name for name in _FIRST if name in fields] + [name for name in fields if name not in _FIRST]
    return {_name(name): _value(name, fields[name]) for name in ordered[: len(_FIRST) + MOST_EXTRAS]}


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


class TextLines(logging.Formatter):
    """Formats records as text: time, level, logger, message. ``process`` is that of ``JsonLines``."""

    def __init__(self, process: int | None = None) -> None:
        super().__init__()
        self._process = "" if process is None else f"[{process}] "

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, UTC).strftime("%H:%M:%S.%f")[:-3]
        # A message may contain text of a job: it must stay on one line. A traceback may have several.
        message = one_line(redact_line(record.getMessage()))
        text = f"{at} {record.levelname.lower():<7} {self._process}{record.name}: {message}"
        trace = redacted_traceback(record)
        return f"{text}\n{plain(trace)}" if trace else text


# Control characters except newline and tab, and those that change the direction of text.
_CONTROL: Final = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def plain(text: str) -> str:
    """Escape control characters, which could rewrite a terminal, except newlines."""
    return _CONTROL.sub(lambda match: match.group().encode("unicode_escape", "surrogatepass").decode(), text)


def configure_logging(
    *, json: bool = True, level: str = "info", jobs: bool = True, stream: TextIO | None = None
) -> logging.Handler:
    """Log to stderr (or ``stream``), as JSON lines or as text. A second call replaces the set-up of the first.

    Handlers that you have set up stay. With ``jobs`` every attempt that ends is logged with its duration; without it,
    only failures are logged.
    """
    if str(level).lower() not in LEVELS:
        raise InvalidSetting(f"the level must be one of {', '.join(LEVELS)}, not {level!r}", code="unknown_option")
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.set_name(HANDLER)
    handler.setFormatter(JsonLines() if json else TextLines())
    root = logging.getLogger()
    root.handlers[:] = [other for other in root.handlers if other.get_name() != HANDLER] + [handler]
    root.setLevel(level.upper())
    logging.getLogger("holdfast.jobs").setLevel(logging.INFO if jobs else logging.WARNING)
    for name in ("psycopg", "psycopg.pool", "asyncio"):  # they log every connection and callback
        logging.getLogger(name).setLevel(logging.WARNING)
    return handler
