"""How an attempt ended, as data, before any store hears of it."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.domain.policies import Backoff


@dataclass(frozen=True, slots=True)
class Succeeded:
    """``result`` is JSON text, or None when the handler returned nothing."""

    result: str | None = None


@dataclass(frozen=True, slots=True)
class Failed:
    """The handler raised. ``after`` overrides the delay, ``backoff`` the rule; ``final``: no further try can help."""

    code: str
    message: str
    traceback: str | None = None
    after: float | None = None
    final: bool = False
    backoff: Backoff | None = None


@dataclass(frozen=True, slots=True)
class Snoozed:
    """The handler asked to be run again later; it is not a failure and costs no retry."""

    delay: float
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Cancelled:
    """The handler ended its job itself: the work is not wanted any more."""

    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Settled:
    """The job's success was committed with the handler's own transaction: there is nothing left to settle."""


Outcome = Succeeded | Failed | Snoozed | Cancelled
