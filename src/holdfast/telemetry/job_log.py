"""``ctx.log``: a logger whose messages carry the fields of the job, are redacted, and are one line each."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Mapping, MutableMapping
from datetime import UTC, datetime
from typing import Any

from holdfast.engine.redaction import Redact, one_line
from holdfast.telemetry.tracebacks import traceback_of

Keep = Callable[[str], None]


class JobLog(logging.LoggerAdapter[logging.Logger]):
    """Adds the fields ``job_id``, ``kind``, ``tenant``, ``attempt``, … to every record.

    A message is redacted after its arguments are formatted, and so is the traceback of ``log.exception``. The record
    has no ``exc_info``, so a formatter that ignores ``record.exc_text`` cannot write the traceback unredacted.

    ``keep`` gets each line that is stored with the attempt: those of level INFO and above, and those that the logger is
    enabled for.
    """

    def __init__(
        self, logger: logging.Logger, fields: Mapping[str, object], redact: Redact, keep: Keep | None = None
    ) -> None:
        super().__init__(logger, fields)
        self._redact = redact
        self._keep = keep

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        return msg, {**kwargs, "extra": {**(kwargs.get("extra") or {}), **(self.extra or {})}}

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        enabled = self.isEnabledFor(level)
        kept = self._keep is not None and (enabled or level >= logging.INFO)
        if not enabled and not kept:
            return
        message = one_line(self._redact(_formatted(msg, args)))
        error = _error(kwargs.get("exc_info"))
        trace = None if error is None else traceback_of(error, self._redact).rstrip()
        if kept and self._keep is not None:
            self._keep(_stored_line(level, message, trace))
        if not enabled:
            return
        _, kwargs = self.process(msg, kwargs)  # type: ignore[assignment]
        path, line, function, stack = self.logger.findCaller(
            bool(kwargs.get("stack_info")), int(kwargs.get("stacklevel", 1)) + 1
        )
        record = self.logger.makeRecord(
            self.logger.name, level, path, line, msg, args, None, function, kwargs["extra"], stack
        )
        record.msg, record.args, record.exc_text = message, (), trace
        self.logger.handle(record)


def _formatted(msg: object, args: tuple[Any, ...]) -> str:
    """The message as ``logging`` formats it. Wrong arguments must not end the handler."""
    try:
        return logging.LogRecord("", 0, "", 0, msg, args, None).getMessage()
    except Exception:
        return f"{msg!r} {args!r}"


def _stored_line(level: int, message: str, trace: str | None) -> str:
    """The line as it is stored: time (UTC), level, message, and the traceback below."""
    at = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    line = f"{at} {logging.getLevelName(level):<7} {message}"
    return line if trace is None else f"{line}\n{trace}"


def _error(exc_info: object) -> BaseException | None:
    if isinstance(exc_info, BaseException):
        return exc_info
    if isinstance(exc_info, tuple):
        return exc_info[1] if isinstance(exc_info[1], BaseException) else None
    return sys.exc_info()[1] if exc_info else None
