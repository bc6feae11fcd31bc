"""How an attempt ends, as data, and the exceptions that a handler raises to end it.

    RetryLater another attempt, after a given delay; counted as a failure
    Reject     no further attempt can help: the job becomes a dead letter at once
    Cancel     the work is no longer wanted: the job ends as cancelled
    Snooze     run again later, at no cost; raised by ``ctx.snooze``
    Stopped    raised *in* a handler by ``ctx.raise_if_cancelled()`` when it must stop

The first four are ordinary exceptions, so ``except Exception`` in a handler catches them like any other. ``Stopped`` is
not, like asyncio's ``CancelledError``: a loop that continues after errors must still end.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from holdfast.engine.names import check_name
from holdfast.engine.retry import Backoff, as_backoff
from holdfast.engine.units import Duration, seconds
from holdfast.errors import InvalidSetting


@dataclass(frozen=True, slots=True)
class Succeeded:
    """``result`` is JSON text, or None if the handler returned nothing; ``ref`` is the reference of a stored result.

    A ``note`` is recorded with the end of the attempt, here and below: the exit code and the log of a program.
    """

    result: str | None = None
    note: dict[str, Any] | None = None
    cost: float | None = None
    ref: str | None = None


PLAIN_SUCCESS = Succeeded()
"""The most frequent outcome: success without a result. One object, so that it can be recognized by identity."""


@dataclass(frozen=True, slots=True)
class Failed:
    """The handler raised. ``after`` overrides the delay, ``backoff`` the rule. ``no_sooner`` is a delay that another
    system requested: it makes the delay longer, never shorter. ``final``: no further attempt can help. ``frame`` is the
    location in the user's code (``module:function``)."""

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
    """The child process of the handler died, but not the worker. It counts like a lost worker."""

    code: str
    message: str
    note: dict[str, Any] | None = None
    cost: float | None = None


@dataclass(frozen=True, slots=True)
class Snoozed:
    """The handler requested to run again later. It is not a failure and costs no retry."""

    delay: float
    reason: str | None = None
    cost: float | None = None


@dataclass(frozen=True, slots=True)
class Cancelled:
    """The handler ended its job, because the work is no longer wanted."""

    reason: str | None = None
    cost: float | None = None


@dataclass(frozen=True, slots=True)
class Paused:
    """The handler is suspended until a time, an event or an approval, and runs again then.

    ``pause`` is a ``Pause`` as JSON, ``steps`` are entries to record with it (``engine/steps.py``).
    """

    pause: dict[str, Any]
    steps: list[dict[str, Any]]
    cost: float | None = None


@dataclass(frozen=True, slots=True)
class Held:
    """The handler made other steps than the job has recorded: the job waits for code that fits them. It has not failed.

    ``steps`` are both sequences side by side. The worker sets the rest: ``delay``, the seconds until the job is a dead
    letter (None: now), when it was held first, and the fingerprints of the code that did not fit.
    """

    code: str
    message: str
    steps: list[dict[str, Any]] = field(default_factory=list)
    delay: float | None = None
    since: str | None = None
    tried: list[str] = field(default_factory=list)
    cost: float | None = None


@dataclass(frozen=True, slots=True)
class Settled:
    """The handler's own transaction has committed the job's success: there is nothing to settle."""


Outcome = Succeeded | Failed | Crashed | Snoozed | Cancelled | Paused | Held


def outcome_label(outcome: Outcome | Settled | None) -> str:
    """One word for logs and metrics; None is an attempt that the worker stopped."""
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
        case Held():
            return "held"
        case _:
            return "stopped"


class RetryLater(Exception):
    """Raise this in a handler to request another attempt: ``raise RetryLater("5m", "the service is down")``.

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
        return self.message or "the handler requested another attempt"


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
    """The job waits and runs again. It has not failed."""

    def __init__(self, delay: Duration, reason: str | None = None) -> None:
        super().__init__(delay, reason)
        self.delay = seconds(delay, "delay")
        self.reason = reason


class Stopped(BaseException):
    """Raised when the handler must stop. ``reason`` is a word such as "timeout"."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
