"""The durable calls as programs, written once for sync and async handlers (like the flows of the stores, ADR 0004).

Each is a generator that yields effects and is sent their results: ``Lookup`` the recorded step, ``Run`` the function,
``Sleep``, ``Save``. ``steps/driver.py`` has the two drivers. A program that has to wait raises ``Suspended``.
"""

from __future__ import annotations

import random
import time
from collections.abc import Generator
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from holdfast.engine.outcome import Cancel, Paused, Reject, RetryLater, Snooze
from holdfast.engine.redaction import Redact
from holdfast.engine.retry import Retry
from holdfast.engine.steps import Pause, Saved, Script, Step, StepEntry, StepKind
from holdfast.errors import EventTimeout, HoldfastError, StaleLease, StoreError
from holdfast.steps.values import AppEvent, Value, describe, recorded_error
from holdfast.worker.shutdown import Suspended

# A retry sooner than this waits in place: suspending the job and claiming it again takes about as long.
IN_PLACE: Final = 1.0
# Exceptions that end the attempt. They are not failures of the step.
_CONTROL = (Cancel, Reject, RetryLater, Snooze, StaleLease, StoreError)


@dataclass(slots=True)
class Lookup:
    """Read the recorded step at this position, and check its name and the question of an approval."""

    n: int
    name: str
    kind: StepKind
    content_hash: str | None = None


@dataclass(slots=True)
class Run:
    """Call the function of the step."""


@dataclass(slots=True)
class Sleep:
    seconds: float


@dataclass(slots=True)
class Save:
    entry: StepEntry


@dataclass(slots=True)
class Failing:
    """The step failed, and is not written unless the handler continues: note its tries for the next attempt."""

    entry: StepEntry


Effect = Lookup | Run | Sleep | Save | Failing
DurableCall = Generator[Effect, Any, Any]


def suspended(script: Script, pause: Pause) -> Suspended:
    """The suspension, with the deferred entries before it."""
    return Suspended(Paused(pause.to_json(), [entry.to_json() for entry in script.deferred_before(pause.n)]))


def step(script: Script, n: int, name: str, value: Value, retry: Retry | None, redact: Redact) -> DurableCall:
    known: Step | None = yield Lookup(n, name, "step")
    if known is not None and known.over:
        if known.error is not None:
            raise recorded_error(known)
        return value.unpack(known.value)
    tries = 0 if known is None else known.tries
    while True:
        tries, began = tries + 1, time.monotonic()
        packing = False
        try:
            returned = yield Run()
            packing = True
            result = value.pack(returned)
        except _CONTROL:
            raise
        except Exception as error:
            # A step whose result cannot be stored is not retried: its effects are done, and the result would be the
            # same.
            delay = None if packing else _retry_delay(retry, error, tries)
            if delay is None:
                # Written with the next call, if there is one: then the handler has caught the error and continues.
                took = time.monotonic() - began
                failed = StepEntry(n, name, "step", None, describe(error, redact), tries, took)
                script.defer(failed)
                yield Failing(failed)
                raise
            if delay > IN_PLACE:
                pause = Pause(n, name, "step", delay=delay, tries=tries, error=describe(error, redact))
                raise suspended(script, pause) from error
            yield Sleep(delay)
        else:
            yield Save(StepEntry(n, name, "step", result, None, tries, time.monotonic() - began))
            return value.restore(result)


def _retry_delay(retry: Retry | None, error: Exception, tries: int) -> float | None:
    """Seconds until the next try by the retry policy of the step; None if there is no further try."""
    if retry is None or tries >= retry.max_attempts or retry.is_final(error):
        return None
    return retry.backoff.delay(tries, random.random())


def sleep(script: Script, n: int, name: str, delay: float | None, until: datetime | None) -> DurableCall:
    known: Step | None = yield Lookup(n, name, "sleep")
    if known is None and delay == 0:
        return None
    if known is not None and (known.over or known.is_late):
        return None
    if known is not None:
        delay, until = None, known.wake_at  # the original end, whatever has woken the job before it
    raise suspended(script, Pause(n, name, "sleep", delay=delay, until=until))


def wait_for_event(
    script: Script, n: int, name: str, wanted: dict[str, Any], timeout: float | None, since: float
) -> DurableCall:
    known: Step | None = yield Lookup(n, name, "event")
    if known is None or not (known.over or known.is_late):
        until = None if known is None else known.wake_at
        delay = timeout if until is None else None
        raise suspended(script, Pause(n, name, "event", delay=delay, until=until, wanted=wanted, since=since))
    if not known.over:
        timed_out = StepEntry(n, name, "event", None, {"type": "timeout", "message": "it did not come in time"})
        saved: list[Saved] = yield Save(timed_out)
        event = next((item.value for item in saved if item.n == n and item.fate == "kept"), None)
        if event is not None:  # it arrived in the last moment
            return AppEvent.of(event)
    elif known.error is None:
        return AppEvent.of(known.value)
    raise EventTimeout(f"event {name!r} did not arrive in time")


def approval(script: Script, n: int, name: str, approval: dict[str, Any]) -> DurableCall:
    known: Step | None = yield Lookup(n, name, "approval", approval["content_hash"])
    if known is None:
        raise suspended(script, Pause(n, name, "approval", approval=approval))
    if not known.over:
        raise HoldfastError(f"approval {name!r} has not been decided", code="approval_open")
    return known.value
