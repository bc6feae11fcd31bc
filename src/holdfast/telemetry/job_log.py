"""``ctx.log``: a logger whose every line names its job, holds no secret and is one line."""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping, MutableMapping
from typing import Any

from holdfast.engine.redaction import Redact, one_line
from holdfast.telemetry.tracebacks import traceback_of


class JobLog(logging.LoggerAdapter[logging.Logger]):
    """Adds the fields ``job_id``, ``kind``, ``tenant``, ``attempt``, … to every record.

    A message is redacted after its arguments have been put in, and so is the traceback of ``log.exception``. A
    formatter that writes tracebacks of its own accord, past ``record.exc_text``, has none to write.
    """

    def __init__(self, logger: logging.Logger, fields: Mapping[str, object], redact: Redact) -> None:
        super().__init__(logger, fields)
        self._redact = redact

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        return msg, {**kwargs, "extra": {**(kwargs.get("extra") or {}), **(self.extra or {})}}

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        if not self.isEnabledFor(level):
            return
        _, kwargs = self.process(msg, kwargs)  # type: ignore[assignment]
        where, line, function, stack = self.logger.findCaller(
            bool(kwargs.get("stack_info")), int(kwargs.get("stacklevel", 1)) + 1
        )
        record = self.logger.makeRecord(
            self.logger.name, level, where, line, msg, args, None, function, kwargs["extra"], stack
        )
        record.msg, record.args = one_line(self._redact(record.getMessage())), ()
        error = _error(kwargs.get("exc_info"))
        if error is not None:
            record.exc_text = traceback_of(error, self._redact).rstrip()
        self.logger.handle(record)


def _error(given: object) -> BaseException | None:
    if isinstance(given, BaseException):
        return given
    if isinstance(given, tuple):
        return given[1] if isinstance(given[1], BaseException) else None
    return sys.exc_info()[1] if given else None
