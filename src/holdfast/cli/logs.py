"""Log lines on stderr: text for people, or one JSON object a line. No record can forge a second line."""

from __future__ import annotations

import logging
import sys
from datetime import UTC, datetime

from holdfast.cli.output import plain
from holdfast.cli.words import clock
from holdfast.telemetry.logs import HANDLER, JsonLines, quieten, redact_line, redacted_traceback

__all__ = ["JsonLines", "TextLines", "set_up"]


class TextLines(logging.Formatter):
    def __init__(self, process: int | None = None) -> None:
        super().__init__()
        self._process = "" if process is None else f"[{process}] "

    def format(self, record: logging.LogRecord) -> str:
        at = clock(datetime.fromtimestamp(record.created, UTC))
        # A message is one line, whatever a job put into it; a traceback, which is ours to print, may be many.
        message = plain(redact_line(record.getMessage())).replace("\n", "\\n")
        text = f"{at} {record.levelname.lower():<7} {self._process}{record.name}: {message}"
        trace = redacted_traceback(record)
        return f"{text}\n{plain(trace)}" if trace else text


def set_up(level: str, *, as_json: bool, process: int | None = None) -> None:
    """``process`` is the number of one of several worker processes whose lines come out together. In JSON every
    attempt that ends has a line; people have asked for none."""
    handler = logging.StreamHandler(sys.stderr)
    handler.set_name(HANDLER)
    handler.setFormatter(JsonLines(process) if as_json else TextLines(process))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    logging.getLogger("holdfast.jobs").setLevel(logging.INFO if as_json else logging.WARNING)
    quieten()
