"""How an attempt ends, as data, and what a handler raises to say so.

What a handler raises to say how its attempt ends:

    RetryLater another attempt, after a delay of its own; counted as a failure
    Reject     no further try can help: to the dead letters at once
    Cancel     the work is not wanted any more: the job ends as cancelled
    Snooze     not now: run again later, at no cost; raised by ``ctx.snooze``
    Stopped    raised *in* a handler by ``ctx.raise_if_cancelled()`` when it has been told to stop

The first four are ordinary exceptions, so that ``except Exception`` in a handler swallows them like any other.
``Stopped`` is none, like asyncio's own ``CancelledError``: a loop that carries on after errors must still end.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from holdfast.engine.names import check_name
from holdfast.engine.retry import Backoff, as_backoff
from holdfast.engine.units import Duration, seconds
from holdfast.errors import InvalidSetting


@dataclass(frozen=True, slots=True)
class Succeeded:
    """``result`` is JSON text, or None when the handler returned nothing; ``ref`` is where a result lies.

    A ``note`` is kept with the end of the attempt, here and below: the exit code and the log of a program.
    """

    result: str | None = None
    note: dict[str, Any] | None = None
    cost: float | None = None
    ref: str | None = None


WELL = Succeeded()
"""Nearly every end, and nothing in it differs."""


@dataclass(frozen=True, slots=True)
class Failed:
    """The handler raised. ``after`` overrides the delay, ``backoff`` the rule; ``no_sooner`` is what somebody else has
    asked for, and makes a delay longer, never shorter; ``final``: no further try can help. ``frame`` is where in the
    user's own code (``module:function``)."""

    code: str
    message: str
    traceback: str | None = None
    after: float | None = None
    final: bool = False
    backoff: Backoff | None = None
    no_sooner: float | None = None
    note: dict[str, Any] | None = None
    frame: str | None = None
    cost: float | None = None


@dataclass(frozen=True, slots=True)
class Crashed:
    """The process the handler ran in is gone, the worker is not: counted with the lost workers (CX-10)."""

    code: str
    message: str
    note: dict[str, Any] | None = None
    cost: float | None = None


@dataclass(frozen=True, slots=True)
class Snoozed:
    """The handler asked to be run again later; it is not a failure and costs no retry."""

    delay: float
    reason: str | None = None
    cost: float | None = None


@dataclass(frozen=True, slots=True)
class Cancelled:
    """The handler ended its job itself: the work is not wanted any more."""

    reason: str | None = None
    cost: float | None = None


@dataclass(frozen=True, slots=True)
class Paused:
    """The handler waits for a time, an event or people, and holds nothing meanwhile: it is run again then.

    ``pause`` is a ``Pause`` as JSON, ``steps`` are entries to be remembered with it (``engine/steps.py``).
    """

    pause: dict[str, Any]
    steps: list[dict[str, Any]]
    cost: float | None = None


@dataclass(frozen=True, slots=True)
class Settled:
    """The job's success was committed with the handler's own transaction: there is nothing left to settle."""


Outcome = Succeeded | Failed | Crashed | Snoozed | Cancelled | Paused


def outcome_word(outcome: Outcome | Settled | None) -> str:
    """One word for logs and metrics; None is an attempt that was stopped from outside."""
    match outcome:
        case Succeeded() | Settled():
            return "succeeded"
        case Failed(final=final):
            return "rejected" if final else "failed"
        case Crashed():
            return "crashed"
        case Snoozed():
            return "snoozed"
        case Cancelled():
            return "cancelled"
        case Paused():
            return "waiting"
        case _:
            return "stopped"


class RetryLater(Exception):
    """Ask for another attempt: ``raise RetryLater("5m", "the service is down")``.

    The job waits for ``after``, or by ``backoff``, or with neither by its own retry policy. It counts as a failed
    attempt like any other; at the limit the job becomes a dead letter.
    """

    def __init__(
        self, after: Duration | None = None, message: str | None = None, *, backoff: Backoff | str | None = None
    ) -> None:
        if message is not None and not isinstance(message, str):
            raise InvalidSetting("message must be text", code="invalid_retry")
        super().__init__(after, message)
        self.after = None if after is None else seconds(after, "delay")
        self.message = message
        self.backoff = None if backoff is None else as_backoff(backoff)

    def __str__(self) -> str:
        return self.message or "the handler asked for another attempt"


class Reject(Exception):
    """Raise this in a handler to make its job a dead letter with this code, whatever attempts are left."""

    def __init__(self, code: str, message: str = "") -> None:
        super().__init__(code, message)
        self.code = check_name(code, "code")
        self.message = message

    def __str__(self) -> str:
        return self.message or self.code


class Cancel(Exception):
    """Raise this in a handler to end its job as cancelled."""

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
    """Raised when the handler must stop. ``reason`` is a word such as "timeout"."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
