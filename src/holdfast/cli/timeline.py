"""A job's way as a person reads it: when, how long after the step before, what, from where to where, by whom, why."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from datetime import datetime
from itertools import pairwise
from typing import Any

from rich.text import Text

from holdfast.cli.output import Cell, line, state_text, table
from holdfast.cli.words import clock, moment, span
from holdfast.engine.job import Attempt, Event
from holdfast.engine.steps import NO_LIMIT

COLUMNS = ("time (UTC)", "after", "verb", "from → to", "try", "by", "")
# Shown elsewhere, or too long for a line.
ELSEWHERE = frozenset({"error_code", "error_message", "due_at", "reason", "traceback", "log"})
_UUID = re.compile(r"\b([0-9a-f]{8})(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b")

# A wait up to this many seconds is shown as a span, a longer one as a time.
SOON = 12 * 3600


def print_timeline(events: Sequence[Event]) -> None:
    table(COLUMNS, timeline(events), keep=COLUMNS[:5])


def timeline(events: Sequence[Event]) -> list[list[Cell]]:
    """One row an event; the date is given once a day."""
    if not events:
        return []
    rows = [_row(events[0], None)]
    rows += [_row(event, before) for before, event in pairwise(events)]
    return rows


def _row(event: Event, before: Event | None) -> list[Cell]:
    same_day = before is not None and before.at.date() == event.at.date()
    return [
        clock(event.at).rjust(23) if same_day else moment(event.at),
        "" if before is None else f"+{span(event.at - before.at)}",
        event.verb,
        way(event),
        str(event.attempt) if event.attempt else "",
        short(event.actor),
        line(special(event)),
    ]


def way(event: Event) -> Text:
    if event.from_state is None:
        return Text.assemble("→ ", state_text(event.to_state))
    return Text.assemble(state_text(event.from_state), " → ", state_text(event.to_state))


def special(event: Event) -> str:
    """What was particular about this step: the error, when it is tried again, the reason, and whatever else."""
    meta = event.meta
    parts = []
    if event.verb in ("fail", "lapse", "crash", "expire", "deny") and meta.get("error_code"):
        parts.append(f"{meta['error_code']}: {meta.get('error_message') or ''}".rstrip(": "))
    if meta.get("reason"):
        parts.append(str(meta["reason"]))
    if meta.get("due_at"):
        parts += _again(str(meta["due_at"]), event.at)
    parts += [f"{name}: {_short_value(value)}" for name, value in meta.items() if name not in ELSEWHERE]
    return "; ".join(parts)


def _again(due: str, at: datetime) -> list[str]:
    """When it goes on; nothing for what waits as long as it takes."""
    try:
        due_at = datetime.fromisoformat(due)
        # Up to the next millisecond, since the ledger gives the due time in whole ones.
        wait = math.ceil(max(0.0, (due_at - at).total_seconds()) * 1000) / 1000
    except (ValueError, TypeError):  # somebody else's note
        return [f"due {due}"]
    if due_at - at > NO_LIMIT:
        return []
    return [f"again in {span(wait)}" if wait < SOON else f"again at {moment(due_at)}"]


def _short_value(value: Any) -> str:
    return value if isinstance(value, str) else repr(value)


def short(actor: str) -> str:
    """An actor with its UUIDs cut to what tells them apart."""
    return line(_UUID.sub(r"\1", actor), 80)


def print_attempts(attempts: Sequence[Attempt]) -> None:
    rows: list[list[Cell]] = [
        [
            str(attempt.attempt),
            moment(attempt.started_at),
            "" if attempt.ended_at is None else span(attempt.ended_at - attempt.started_at),
            attempt.outcome or "running",
            short(attempt.worker),
            line(f"{attempt.error_code}: {attempt.error_message}" if attempt.error_code else ""),
        ]
        for attempt in attempts
    ]
    table(("try", "began (UTC)", "took", "outcome", "by", "error"), rows, keep=("try", "began (UTC)", "took"))
