"""From an outcome to a settlement: the whole policy of what happens after an attempt, in one pure function.

Stores apply settlements and decide nothing. Data flows one way:
``Claim`` → handler → ``Outcome`` → ``decide`` → ``Settlement`` → store.

The fingerprint of a failure groups equal failures. It is made of the kind, the error code, the shape of the message and
the location in the user's code (``module:function``; not the line, which changes with every edit above it), so it stays
the same when an id, a number or a line of code changes. ``failure.sql`` has the same rule, and a test compares the two.
So the patterns use only what both dialects read alike (no part of a pattern matches what follows it), and each starts
where a run of its characters starts, which keeps the time linear for every message.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import Any, Final, Literal, assert_never

from holdfast.engine.job import Claim
from holdfast.engine.outcome import PLAIN_SUCCESS, Cancelled, Crashed, Failed, Held, Outcome, Paused, Snoozed, Succeeded
from holdfast.engine.payload import safe_text
from holdfast.engine.retry import PATIENT, Backoff
from holdfast.errors import InvalidInput, InvalidSetting

READ: Final = 1_000
"""Characters of a message that are read."""
KEPT: Final = 300
"""Characters of its shape that are compared."""
LENGTH: Final = 16

_HEX: Final = "[0-9A-Fa-f]"
RULES: Final = (
    # Parts of a message that differ between equal failures, and their replacement in the shape.
    (rf"{_HEX}{{8}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{12}}", "<id>"),
    (r"[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9]{2}:[0-9]{2}[0-9:.,]*(Z|[+-][0-9]{2}:?[0-9]{2})?", "<time>"),
    (r"[0-9]{4}-[0-9]{2}-[0-9]{2}", "<time>"),
    (r'"[^"]*"', "<text>"),
    (r"`[^`]*`", "<text>"),
    (r"(^|[^A-Za-z0-9'])'[^']*'", r"\1<text>"),  # not the apostrophe of a word
    (r"(^|[^A-Za-z0-9+.-])[A-Za-z][A-Za-z0-9+.-]*://[^ \t\r\n]+", r"\1<url>"),
    (r"(^|[^A-Za-z0-9])[A-Za-z]:\\[^ \t\r\n:,;)]+", r"\1<path>"),
    (r"(^|[^A-Za-z0-9</])/[^ \t\r\n:,;)]+", r"\1<path>"),
    (r"(^|[^A-Za-z0-9_])[A-Za-z_]*[0-9][A-Za-z0-9_]*", r"\1<n>"),
    (r"(^|[^A-Za-z0-9_])[A-Fa-f]{8,}", r"\1<n>"),
    (r"<n>([.,:]+<n>)+", "<n>"),
    (r"[ \t\r\n]+", " "),
)
_RULES: Final = tuple((re.compile(pattern), replacement) for pattern, replacement in RULES)


def shape(message: str) -> str:
    """The message without the parts that differ between equal failures: ids, numbers, times, quoted text, paths."""
    text = message[:READ]
    for pattern, replacement in _RULES:
        text = pattern.sub(replacement, text)
    return text.strip(" ")[:KEPT]


def fingerprint(kind: str, code: str, message: str, frame: str | None = None) -> str:
    """The group of a dead letter, within its tenant."""
    parts = "\n".join((kind, code, shape(message), frame or ""))
    return hashlib.sha256(parts.encode()).hexdigest()[:LENGTH]


Ending = Literal["succeeded", "retry", "dead_letter", "fail", "crash", "snooze", "cancel", "pause", "ask"]

MESSAGE_LIMIT = 2_000
TRACEBACK_LIMIT = 16_000
LONGEST_DELAY = 100 * 365 * 86_400.0
MOST_SPREAD = 60.0


@dataclass(slots=True)
class Settlement:
    """The complete end of one attempt. The store only counts: a ``crash`` within the job's limit of crashes is retried
    after ``delay``, one beyond it makes the job a dead letter, as with recovery."""

    id: str
    attempt: int
    ending: Ending
    delay: float = 0.0
    code: str | None = None
    message: str | None = None
    result: str | None = None
    note: dict[str, Any] | None = None
    pause: dict[str, Any] | None = None
    steps: list[dict[str, Any]] | None = None
    ref: str | None = None
    """The reference of a result that is stored elsewhere."""


def decide(claim: Claim, outcome: Outcome, random01: float) -> Settlement:
    """The settlement of an attempt. ``random01`` is the jitter, drawn by the caller so that this function is pure."""
    if outcome is PLAIN_SUCCESS:
        return Settlement(claim.id, claim.attempt, "succeeded")
    settlement = _decide(claim, outcome, random01)
    if outcome.cost:  # recorded in the ledger, where usage is counted
        settlement.note = (settlement.note or {}) | {"cost": outcome.cost}
    return settlement


def _decide(claim: Claim, outcome: Outcome, random01: float) -> Settlement:
    match outcome:
        case Succeeded():
            result, note = outcome.result, outcome.note
            return Settlement(claim.id, claim.attempt, "succeeded", result=result, note=note, ref=outcome.ref)
        case Snoozed(delay, reason):
            why = {"reason": safe_text(reason, MESSAGE_LIMIT)} if reason else None
            return Settlement(claim.id, claim.attempt, "snooze", delay=_bounded(delay), note=why)
        case Cancelled(reason):
            # The actor of an operator's cancel is the operator. Here it is the worker, so the note names the handler.
            note = {"by": "handler"} | ({"reason": safe_text(reason, MESSAGE_LIMIT)} if reason else {})
            return Settlement(claim.id, claim.attempt, "cancel", note=note)
        case Paused(pause, steps):
            return _waiting(claim, pause, steps)
        case Failed():
            return _after_failure(claim, outcome, random01)
        case Held(code, message, steps, delay):
            if delay is None:
                return _after_failure(claim, Failed(code, message, final=True), random01)
            mismatch: dict[str, Any] = {"code": code, "message": safe_text(message, MESSAGE_LIMIT), "steps": steps}
            mismatch |= {"since": outcome.since, "tried": outcome.tried}
            return Settlement(claim.id, claim.attempt, "snooze", delay=_bounded(delay), note={"mismatch": mismatch})
        case Crashed(code, message, note):
            code, message = safe_text(code, 100), safe_text(message, MESSAGE_LIMIT)
            # With a delay: a job that ran out of memory would do so again if it were retried at once.
            delay = _backoff(claim).delay(claim.crashes + 1, random01)
            # With a fingerprint: the store decides whether the job becomes a dead letter.
            note = {**(note or {}), "fingerprint": fingerprint(claim.kind, code, message)}
            return Settlement(claim.id, claim.attempt, "crash", delay=delay, code=code, message=message, note=note)
        case _:
            assert_never(outcome)


def _waiting(claim: Claim, pause: dict[str, Any], steps: list[dict[str, Any]]) -> Settlement:
    name = pause["name"]
    if pause["kind"] == "approval":
        note = {"approval": name, "approval_id": pause["approval"]["id"]}
        return Settlement(claim.id, claim.attempt, "ask", note=note, pause=pause, steps=steps or None)
    if pause["kind"] == "step":
        note = {"step": name, "tries": pause["tries"], "error": pause["error"]["message"]}
    else:
        note = {"sleeps": name} if pause["kind"] == "sleep" else {"waits_for": name}
    bounded = pause if "until" in pause else pause | {"delay": _bounded(pause.get("delay", LONGEST_DELAY))}
    return Settlement(claim.id, claim.attempt, "pause", note=note, pause=bounded, steps=steps or None)


def hand_back(claim: Claim, *, at_most_once: bool = False) -> Outcome:
    """The outcome of a job whose worker stops before the job is done: run again elsewhere, at no cost.

    Except for at-most-once jobs, which end: they must not run twice, and it is unknown how far this one has come.
    ``at_most_once`` is the declaration of the kind, for a job that was enqueued by a program that did not know it.
    """
    if at_most_once or claim.max_crashes == 0:
        return Failed(
            "interrupted", "the worker was stopped before the job was done; it is not started again", final=True
        )
    return Snoozed(0.0, "worker_stopped")


def unreadable(claim: Claim) -> Failed:
    """The outcome of a job whose row cannot be read, or has a kind that this worker did not request."""
    why = claim.unreadable or f"its row names the kind {claim.kind!r}, which this worker did not request"
    return Failed("unreadable_job", f"the job cannot be read: {why}", final=True)


def _after_failure(claim: Claim, failure: Failed, random01: float) -> Settlement:
    code, message, note = safe_text(failure.code, 100), safe_text(failure.message, MESSAGE_LIMIT), _note(failure)
    if not failure.final and claim.retries + 1 < claim.max_attempts:
        after, rule = failure.after, failure.backoff or _backoff(claim)
        delay = _bounded(after) if after is not None else rule.delay(claim.retries + 1, random01)
        delay = max(delay, _spread(failure.no_sooner or 0.0, random01))
        return Settlement(claim.id, claim.attempt, "retry", delay=delay, code=code, message=message, note=note or None)
    # The fingerprint is computed here, because only the worker knows the location in the user's code.
    frame = None if failure.frame is None else safe_text(failure.frame, 200)
    group = {"fingerprint": fingerprint(claim.kind, code, message, frame)} | ({"frame": frame} if frame else {})
    return Settlement(claim.id, claim.attempt, "dead_letter", code=code, message=message, note=note | group)


def _note(failure: Failed) -> dict[str, Any]:
    trace = {"traceback": safe_text(failure.traceback, TRACEBACK_LIMIT)} if failure.traceback else {}
    return {**(failure.note or {}), **trace}


def _backoff(claim: Claim) -> Backoff:
    """The backoff of the job; the default if the stored one is invalid (written by hand), as the job must be
    settled."""
    try:
        return Backoff.from_json(claim.backoff) if claim.backoff else PATIENT
    except InvalidSetting:
        return PATIENT


def storable(text: str | None) -> str | None:
    """A reason or note as text that every store accepts."""
    if text is None:
        return None
    if not isinstance(text, str):
        raise InvalidInput(f"a reason or note must be text, not {type(text).__name__}", code="invalid_input")
    return safe_text(text, MESSAGE_LIMIT)


def _spread(delay: float, random01: float) -> float:
    """A little later than requested, so that jobs with the same request do not return at the same moment."""
    return _bounded(delay) + random01 * min(MOST_SPREAD, _bounded(delay) / 10)


def _bounded(delay: float) -> float:
    """A delay that every store can add to the current time: the attempt must end whatever delay a handler requests."""
    return min(delay, LONGEST_DELAY) if delay > 0 else 0.0  # not a number is not greater than zero
