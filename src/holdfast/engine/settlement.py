"""``decide(claim, outcome, policy, now) -> Settlement``; failure fingerprints.

Outcome to settlement: the whole policy of what happens after an attempt, in one pure function.

Stores apply settlements and decide nothing. Data flows one way:
``Claim`` → handler → ``Outcome`` → ``decide`` → ``Settlement`` → store.

Which failures are one and the same (DP-15): a short text that stays when an id, a number or a line of code changes.

It is made of the kind, the error's code, the shape of its message, and the place in the user's own code where it was
raised (``module:function``; not the line, which every edit above it would move). Those who have only SQL have the same
rule there (``failure.sql``), and a test compares the two. So the patterns keep to what both read alike
(what stands before never fits what comes next), and each begins where a run of its characters begins: the time is
linear, whoever wrote the message.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import Any, Final, Literal, assert_never

from holdfast.engine.job import Claim
from holdfast.engine.outcome import WELL, Cancelled, Crashed, Failed, Outcome, Paused, Snoozed, Succeeded
from holdfast.engine.payload import safe_text
from holdfast.engine.retry import PATIENT, Backoff
from holdfast.errors import InvalidInput, InvalidSetting

READ: Final = 1_000
"""How much of a message is looked at."""
KEPT: Final = 300
"""And how much of its shape is told apart."""
LENGTH: Final = 16

_HEX: Final = "[0-9A-Fa-f]"
RULES: Final = (
    # What it is in a message that differs from one failure to the next, and what stands for it in the shape.
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
_RULES: Final = tuple((re.compile(pattern), becomes) for pattern, becomes in RULES)


def shape(message: str) -> str:
    """The message without what differs from one failure to the next: ids, numbers, times, quoted text, paths."""
    text = message[:READ]
    for pattern, becomes in _RULES:
        text = pattern.sub(becomes, text)
    return text.strip(" ")[:KEPT]


def fingerprint(kind: str, code: str, message: str, frame: str | None = None) -> str:
    """The name of the group that a dead letter belongs to, within its tenant."""
    parts = "\n".join((kind, code, shape(message), frame or ""))
    return hashlib.sha256(parts.encode()).hexdigest()[:LENGTH]


Ending = Literal["succeeded", "retry", "bury", "fail", "crash", "snooze", "cancel", "pause", "ask"]

MESSAGE_LIMIT = 2_000
TRACEBACK_LIMIT = 16_000
LONGEST_DELAY = 100 * 365 * 86_400.0
MOST_SPREAD = 60.0


@dataclass(slots=True)
class Settlement:
    """One attempt's end, complete. All that is left for the store is to count: a ``crash`` within the job's
    limit of crashes is tried again after ``delay``, one beyond it is buried, as the reaper does it."""

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
    """Where the result lies, if not here."""


def decide(claim: Claim, outcome: Outcome, random01: float) -> Settlement:
    """``random01`` is the jitter, drawn by the caller so that this stays a function."""
    if outcome is WELL:
        return Settlement(claim.id, claim.attempt, "succeeded")
    settlement = _decide(claim, outcome, random01)
    if outcome.cost:  # into the ledger with the end of the attempt, where usage finds it
        settlement.note = (settlement.note or {}) | {"cost": outcome.cost}
    return settlement


def _decide(claim: Claim, outcome: Outcome, random01: float) -> Settlement:
    match outcome:
        case Succeeded():
            end, note = outcome.result, outcome.note
            return Settlement(claim.id, claim.attempt, "succeeded", result=end, note=note, ref=outcome.ref)
        case Snoozed(delay, reason):
            why = {"reason": safe_text(reason, MESSAGE_LIMIT)} if reason else None
            return Settlement(claim.id, claim.attempt, "snooze", delay=_bounded(delay), note=why)
        case Cancelled(reason):
            # An operator's cancel says who it was by its actor; here that is the worker, hence the mark.
            note = {"by": "handler"} | ({"reason": safe_text(reason, MESSAGE_LIMIT)} if reason else {})
            return Settlement(claim.id, claim.attempt, "cancel", note=note)
        case Paused(pause, steps):
            return _waiting(claim, pause, steps)
        case Failed():
            return _after_failure(claim, outcome, random01)
        case Crashed(code, message, note):
            code, message = safe_text(code, 100), safe_text(message, MESSAGE_LIMIT)
            # What ran out of memory once will do so again if it is begun again at once.
            delay = _backoff(claim).delay(claim.crashes + 1, random01)
            # Whether it was one too many is the store's to count, so the group comes along.
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
    """What becomes of a job whose worker must leave before it is done: run again elsewhere, at no cost.

    Unless a lost worker would be its end: what was begun of such a job must not be done twice, and nobody knows how
    far it had come (SC-7). ``at_most_once`` is the kind's own word, for a job enqueued where that was not known.
    """
    if at_most_once or claim.max_crashes == 0:
        return Failed(
            "interrupted", "the worker was stopped before the job was done; it is not begun again", final=True
        )
    return Snoozed(0.0, "worker_stopped")


def unreadable(claim: Claim) -> Failed:
    """What becomes of a job whose row cannot be read, or names a kind that was not asked for."""
    why = claim.unreadable or f"its row names the kind {claim.kind!r}, which this worker did not ask for"
    return Failed("unreadable_job", f"the job cannot be read: {why}", final=True)


def _after_failure(claim: Claim, failure: Failed, random01: float) -> Settlement:
    again = not failure.final and claim.retries + 1 < claim.max_attempts
    delay = 0.0
    if again:
        asked, rule = failure.after, failure.backoff or _backoff(claim)
        delay = _bounded(asked) if asked is not None else rule.delay(claim.retries + 1, random01)
        delay = max(delay, _spread(failure.no_sooner or 0.0, random01))
    code, message, note = safe_text(failure.code, 100), safe_text(failure.message, MESSAGE_LIMIT), _note(failure)
    if again:
        return Settlement(claim.id, claim.attempt, "retry", delay=delay, code=code, message=message, note=note or None)
    # Which dead letters it belongs with: told here, where the place in the user's code is known.
    frame = None if failure.frame is None else safe_text(failure.frame, 200)
    group = {"fingerprint": fingerprint(claim.kind, code, message, frame)} | ({"frame": frame} if frame else {})
    return Settlement(claim.id, claim.attempt, "bury", code=code, message=message, note=note | group)


def _note(failure: Failed) -> dict[str, Any]:
    trace = {"traceback": safe_text(failure.traceback, TRACEBACK_LIMIT)} if failure.traceback else {}
    return {**(failure.note or {}), **trace}


def _backoff(claim: Claim) -> Backoff:
    """The job's own, or the default where somebody wrote one by hand that makes no sense: it must be settled."""
    try:
        return Backoff.from_json(claim.backoff) if claim.backoff else PATIENT
    except InvalidSetting:
        return PATIENT


def storable(text: str | None) -> str | None:
    """Why somebody did something to a job, as every store can keep it."""
    if text is None:
        return None
    if not isinstance(text, str):
        raise InvalidInput(f"a reason or note must be text, not {type(text).__name__}", code="invalid_input")
    return safe_text(text, MESSAGE_LIMIT)


def _spread(asked: float, random01: float) -> float:
    """A little later than was asked for: those who were told the same do not come back at the same moment."""
    return _bounded(asked) + random01 * min(MOST_SPREAD, _bounded(asked) / 10)


def _bounded(delay: float) -> float:
    """A delay that every store can add to the present: whatever a handler asked for, its attempt must end."""
    return min(delay, LONGEST_DELAY) if delay > 0 else 0.0  # not a number is not greater than zero
