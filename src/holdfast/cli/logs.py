"""Log lines on stderr: text for people, or one JSON object a line. No record can forge a second line."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime

from holdfast.cli.output import plain
from holdfast.cli.words import clock


def traceback_of(formatter: logging.Formatter, record: logging.LogRecord) -> str | None:
    """The one a job's own log has redacted already, else that of the exception."""
    return record.exc_text or (formatter.formatException(record.exc_info) if record.exc_info else None)


class TextLines(logging.Formatter):
    def __init__(self, process: int | None = None) -> None:
        super().__init__()
        self._process = "" if process is None else f"[{process}] "

    def format(self, record: logging.LogRecord) -> str:
        at = clock(datetime.fromtimestamp(record.created, UTC))
        # A message is one line, whatever a job put into it; a traceback, which is ours to print, may be many.
        message = plain(record.getMessage()).replace("\n", "\\n")
        text = f"{at} {record.levelname.lower():<7} {self._process}{record.name}: {message}"
        trace = traceback_of(self, record)
        return f"{text}\n{plain(trace)}" if trace else text


class JsonLines(logging.Formatter):
    def __init__(self, process: int | None = None) -> None:
        super().__init__()
        self._process: dict[str, object] = {} if process is None else {"process": process}

    def format(self, record: logging.LogRecord) -> str:
        values: dict[str, object] = {
            "at": datetime.fromtimestamp(record.created, UTC).isoformat().replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **self._process,
        }
        trace = traceback_of(self, record)
        if trace:
            values["traceback"] = trace
        return json.dumps(values)


def set_up(level: str, *, as_json: bool, process: int | None = None) -> None:
    """``process`` is the number of one of several worker processes whose lines come out together."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines(process) if as_json else TextLines(process))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    # What others say about every connection and callback is of no use below a warning.
    for name in ("psycopg", "psycopg.pool", "asyncio"):
        logging.getLogger(name).setLevel(logging.WARNING)
