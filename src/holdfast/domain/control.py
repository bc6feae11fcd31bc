"""What a handler raises to say how its attempt ends. (``Retry`` is in ``policies``: it is also the policy itself.)

    Reject     no further try can help: to the dead letters at once
    Cancel     the work is not wanted any more: the job ends as cancelled
    Snooze     not now: run again later, at no cost; raised by ``ctx.snooze``
    Stopped    raised *in* a handler by ``ctx.check()`` when it has been told to stop

The first three are ordinary exceptions, so that ``except Exception`` in a handler swallows them like any other.
``Stopped`` is none, like asyncio's own ``CancelledError``: a loop that carries on after errors must still end.
"""

from __future__ import annotations

from holdfast.domain.durations import Duration, seconds
from holdfast.domain.keys import check_name


class Reject(Exception):
    """The job is buried with this code, whatever tries it has left."""

    def __init__(self, code: str, message: str = "") -> None:
        super().__init__(code, message)
        self.code = check_name(code, "code")
        self.message = message

    def __str__(self) -> str:
        return self.message or self.code


class Cancel(Exception):
    """The job ends as cancelled, by its own handler."""

    def __init__(self, reason: str | None = None) -> None:
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        return self.reason or "the handler cancelled its job"


class Snooze(Exception):
    """The job waits and is run again; it has not failed."""

    def __init__(self, delay: Duration, reason: str | None = None) -> None:
        super().__init__(delay, reason)
        self.delay = seconds(delay, "delay")
        self.reason = reason


class Stopped(BaseException):
    """The handler was told to stop: ``reason`` is a word such as "timeout"."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
