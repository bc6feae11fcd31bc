"""A job as a picture: how long it was in which state, what happened, and documents that may be shown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from holdfast.engine.job import Event
from holdfast.engine.states import State

# Shown elsewhere, or too long for a line.
ELSEWHERE = frozenset({"error_code", "error_message", "reason", "traceback", "log"})
LEAST = 0.6
"""Percent: what took no time at all is still to be seen."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """A while in one state; ``left`` and ``width`` are percent of the whole, as attributes of a drawing."""

    state: State
    since: datetime
    took: float
    over: bool
    left: float
    width: float


def stretches(history: Sequence[Event], now: datetime) -> list[Stretch]:
    """Each state once for as long as it lasted in one go. What has ended stays as it is, and takes no more time."""
    merged: list[tuple[State, datetime]] = []
    for event in history:
        if not merged or merged[-1][0] is not event.to_state:
            merged.append((event.to_state, event.at))
    if not merged:
        return []
    ends = [at for _, at in merged[1:]]
    last = merged[-1][0]
    ends.append(merged[-1][1] if last.finished else max(now, merged[-1][1]))
    spans = [max(0.0, (end - since).total_seconds()) for (_, since), end in zip(merged, ends, strict=True)]
    whole = sum(spans) or 1.0
    widths = [max(LEAST, 100 * span / whole) for span in spans]
    scale, left, found = 100 / sum(widths), 0.0, []
    for n, ((state, since), span, width) in enumerate(zip(merged, spans, widths, strict=True)):
        over = n < len(merged) - 1
        found.append(Stretch(state, since, span, over, round(left, 3), round(width * scale, 3)))
        left += width * scale
    return found


def special(event: Event) -> str:
    """What was particular about this step: the error, the reason, and whatever else is noted."""
    meta = event.meta
    parts = []
    if event.verb in ("fail", "lapse", "crash", "expire", "deny") and meta.get("error_code"):
        parts.append(f"{meta['error_code']}: {meta.get('error_message') or ''}".rstrip(": "))
    if meta.get("reason"):
        parts.append(str(meta["reason"]))
    parts += [f"{name}: {value}" for name, value in meta.items() if name not in ELSEWHERE]
    return "; ".join(parts)
