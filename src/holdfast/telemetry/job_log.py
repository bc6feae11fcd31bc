"""``ctx.log``: a logger whose every line names its job, holds no secret and is one line."""

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

    A message is redacted after its arguments have been put in, and so is the traceback of ``log.exception``. A
    formatter that writes tracebacks of its own accord, past ``record.exc_text``, has none to write.

    ``keep`` gets each line that is kept with the attempt: those of level INFO and above, and those that the logger is
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
        heard = self.isEnabledFor(level)
        kept = self._keep is not None and (heard or level >= logging.INFO)
        if not heard and not kept:
            return
        message = one_line(self._redact(_formatted(msg, args)))
        error = _error(kwargs.get("exc_info"))
        trace = None if error is None else traceback_of(error, self._redact).rstrip()
        if kept and self._keep is not None:
            self._keep(_written(level, message, trace))
        if not heard:
            return
        _, kwargs = self.process(msg, kwargs)  # type: ignore[assignment]
        where, line, function, stack = self.logger.findCaller(
            bool(kwargs.get("stack_info")), int(kwargs.get("stacklevel", 1)) + 1
        )
        record = self.logger.makeRecord(
            self.logger.name, level, where, line, msg, args, None, function, kwargs["extra"], stack
        )
        record.msg, record.args, record.exc_text = message, (), trace
        self.logger.handle(record)


def _formatted(msg: object, args: tuple[Any, ...]) -> str:
    """The message as ``logging`` formats it. Arguments that do not fit must not end the handler."""
    try:
        return logging.LogRecord("", 0, "", 0, msg, args, None).getMessage()
    except Exception:
        return f"{msg!r} {args!r}"


def _written(level: int, message: str, trace: str | None) -> str:
    """The line as it is kept: time (UTC), level, message, and the traceback below."""
    at = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    line = f"{at} {logging.getLevelName(level):<7} {message}"
    return line if trace is None else f"{line}\n{trace}"


def _error(given: object) -> BaseException | None:
    if isinstance(given, BaseException):
        return given
    if isinstance(given, tuple):
        return given[1] if isinstance(given[1], BaseException) else None
    return sys.exc_info()[1] if given else None
