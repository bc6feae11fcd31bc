"""The durable calls themselves, written once for both colours (as the flows of the stores are, ADR 0005).

Each is a generator: it yields what it needs (``Know`` what is remembered, ``Run`` the function, ``Nap``, ``Save``) and
is sent the answer; ``steps/driver.py`` has the two that carry it out. To wait is to raise ``Suspended``.
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
from holdfast.steps.values import AppEvent, Value, describe, remembered
from holdfast.worker.shutdown import Suspended

# A step that is tried again sooner than this is waited for in place: to let go and be taken again takes about as long.
IN_PLACE: Final = 1.0
_CONTROL = (Cancel, Reject, RetryLater, Snooze, StaleLease, StoreError)


@dataclass(slots=True)
class Know:
    n: int
    name: str
    kind: StepKind


@dataclass(slots=True)
class Run:
    """Call the function of the step."""


@dataclass(slots=True)
class Nap:
    seconds: float


@dataclass(slots=True)
class Save:
    entry: StepEntry


Effect = Know | Run | Nap | Save
Durably = Generator[Effect, Any, Any]


def suspended(script: Script, pause: Pause) -> Suspended:
    """What need not be written before is written with it."""
    return Suspended(Paused(pause.to_json(), [entry.to_json() for entry in script.due_with(pause.n)]))


def step(script: Script, n: int, name: str, value: Value, retry: Retry | None, redact: Redact) -> Durably:
    known: Step | None = yield Know(n, name, "step")
    if known is not None and known.over:
        if known.error is not None:
            raise remembered(known)
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
            # What it did is done, and what it returned will not fit the next time either.
            delay = None if packing else _again_in(retry, error, tries)
            if delay is None:
                # Written with the next call, if there is one: then the handler has caught it, and goes on from here.
                took = time.monotonic() - began
                script.put_off(StepEntry(n, name, "step", None, describe(error, redact), tries, took))
                raise
            if delay > IN_PLACE:
                pause = Pause(n, name, "step", delay=delay, tries=tries, error=describe(error, redact))
                raise suspended(script, pause) from error
            yield Nap(delay)
        else:
            yield Save(StepEntry(n, name, "step", result, None, tries, time.monotonic() - began))
            return value.again(result)


def _again_in(retry: Retry | None, error: Exception, tries: int) -> float | None:
    """Seconds until the next try by the step's own policy; None when there is none."""
    if retry is None or tries >= retry.max_attempts or retry.is_final(error):
        return None
    return retry.backoff.delay(tries, random.random())


def sleep(script: Script, n: int, name: str, delay: float | None, until: datetime | None) -> Durably:
    known: Step | None = yield Know(n, name, "sleep")
    if known is None and delay == 0:
        return None
    if known is not None and (known.over or known.is_late):
        return None
    if known is not None:
        delay, until = None, known.wake_at  # as it was first said, whatever has roused it
    raise suspended(script, Pause(n, name, "sleep", delay=delay, until=until))


def wait_for_event(
    script: Script, n: int, name: str, wanted: dict[str, Any], timeout: float | None, since: float
) -> Durably:
    known: Step | None = yield Know(n, name, "event")
    if known is None or not (known.over or known.is_late):
        until = None if known is None else known.wake_at
        delay = timeout if until is None else None
        raise suspended(script, Pause(n, name, "event", delay=delay, until=until, wanted=wanted, since=since))
    if not known.over:
        late = StepEntry(n, name, "event", None, {"type": "timeout", "message": "it did not come in time"})
        answers: list[Saved] = yield Save(late)
        came = next((answer.value for answer in answers if answer.n == n and answer.fate == "kept"), None)
        if came is not None:  # in the last moment
            return AppEvent.of(came)
    elif known.error is None:
        return AppEvent.of(known.value)
    raise EventTimeout(f"event {name!r} did not arrive in time")


def approval(script: Script, n: int, name: str, approval: dict[str, Any]) -> Durably:
    known: Step | None = yield Know(n, name, "approval")
    if known is None:
        raise suspended(script, Pause(n, name, "approval", approval=approval))
    if not known.over:
        raise HoldfastError(f"approval {name!r} has not been decided", code="approval_open")
    return known.value
