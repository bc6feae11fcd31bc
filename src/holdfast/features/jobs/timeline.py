"""A job's history, steps and waits as text."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from datetime import datetime
from itertools import pairwise
from typing import Any

from rich.text import Text

from holdfast.cli.output import Cell, clock, line, moment, span, state_text, table
from holdfast.engine.job import Attempt, Event, Job
from holdfast.engine.states import State
from holdfast.engine.steps import NO_LIMIT, Step
from holdfast.features.approvals.model import Approval
from holdfast.features.jobs.views import Story
from holdfast.stores.vault import shown

STEP_COLUMNS = ("n", "kind", "name", "state", "tries", "took", "value or error")
STYLES = {"done": "green", "failed": "red", "asked": "magenta", "not over": "dim"}
SHORT = 80


def reason_text(story: Story) -> str | None:
    """``waits for event payment.settled with invoice = 7 until …``; None for a job that does not wait in a call."""
    step = story.waits_in
    unmet = [parent for parent in story.parents if parent.state is not State.SUCCEEDED]
    if story.job.state is State.QUEUED and story.job.attempt == 0 and unmet:
        return f"waits for {', '.join(f'{line(p.name or p.job_id)} ({p.state})' for p in unmet)}"
    if story.approval is not None:
        return _asks(story.approval)
    if step is None:
        return None
    until = "" if step.until is None else f" until {moment(step.until)}"
    match step.kind:
        case "sleep":
            return f"sleeps{until}" + ("" if step.name == "sleep" else f" ({line(step.name)})")
        case "event":
            return f"waits for event {line(step.name)}{_with(step.wanted)}{until}"
        case "approval":
            return f"asks: {line(step.name)}"
        case _:
            tried = f"{step.tries} {'try' if step.tries == 1 else 'tries'}"
            at = "" if step.until is None else f" at {moment(step.until)}"
            return f"step {line(step.name)} is tried again{at}, after {tried}: {_error(step.error)}"


def short_reason(job: Job, note: dict[str, Any]) -> str:
    """The same for a list, as far as the note of its last transition tells."""
    endless = job.due_at is None or job.due_at - job.created_at > NO_LIMIT
    until = "" if endless or job.due_at is None else f" until {moment(job.due_at)}"
    if note.get("held") == "parents":
        return "waits for jobs of its workflow"
    if "waits_for" in note:
        return line(f"waits for event {note['waits_for']}{until}")
    if "sleeps" in note:
        return line(f"sleeps{until}")
    if "approval" in note:
        return line(f"asks: {note['approval']}")
    if "step" in note:
        return line(f"step {note['step']} failed: {note.get('error', '')}")
    if until and job.state is State.QUEUED and "held" not in note:
        return line(f"delayed{until}")
    return line(note.get("reason", ""))


def _asks(approval: Approval) -> str:
    expires = "" if approval.expires_at is None else f", expires {moment(approval.expires_at)}"
    given = f"{approval.approvals} of {approval.quorum} approvals"
    return f"asks: {line(approval.name)} (approval {approval.id}), {given}{expires}"


def _with(wanted: dict[str, Any] | None) -> str:
    parts = [f"{name} = {_json(value)}" for name, value in sorted((wanted or {}).items())]
    return line(f" with {', '.join(parts)}") if parts else ""


def print_steps(steps: Sequence[Step], job: Job) -> None:
    rows: list[list[Cell]] = [
        [
            str(step.n),
            line(step.kind),
            line(step.name, SHORT),
            _styled(state_of(step, job)),
            str(step.tries),
            _took(step),
            _value(step),
        ]
        for step in steps
    ]
    table(STEP_COLUMNS, rows, keep=("n", "kind", "tries", "took"))


def state_of(step: Step, job: Job) -> str:
    if step.over:
        return "done" if step.error is None else "failed"
    if step.kind == "sleep" and step.is_late:
        return "done"
    if job.state.finished:
        return "not over"
    if step.running and job.state is State.IN_PROGRESS:
        return f"running since {moment(step.started_at)}"
    until = "" if step.until is None else f" until {moment(step.until)}"
    match step.kind:
        case "sleep":
            return f"sleeping{until}"
        case "event":
            return f"waiting{until}"
        case "approval":
            return "asked"
        case _:
            return "to be tried again"


def _styled(state: str) -> Text:
    return Text(state, style=STYLES.get(state, "yellow"))


def _took(step: Step) -> str:
    end = step.ended_at or (step.wake_at if step.kind == "sleep" and step.is_late else None)
    return "" if end is None else span(max(0.0, (end - step.started_at).total_seconds()))


def _value(step: Step) -> str:
    if step.error is not None:
        return _error(step.error)
    value = step.value
    if step.kind == "approval" and isinstance(value, dict):
        votes = [vote for vote in value.get("votes") or [] if isinstance(vote, dict)]
        people = ", ".join(str(vote.get("person")) for vote in votes)
        comment = votes[-1].get("comment") if votes else None
        said = f"{value.get('state')} by {people}" if people else str(value.get("state"))
        return line(said + (f": {comment}" if comment else ""), SHORT)
    if step.kind == "event" and isinstance(value, dict):
        value = value.get("data")
    if (sealed := shown(value)) is not value:
        return str(sealed)
    return "" if value is None else line(_json(value), SHORT)


def _error(error: dict[str, Any] | None) -> str:
    said = error or {}
    kind = str(said.get("type") or "").removeprefix("builtins.")
    return line(": ".join(part for part in (kind, str(said.get("message") or "")) if part))


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


COLUMNS = ("time (UTC)", "after", "type", "from → to", "try", "by", "")
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
        event.type,
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
    if event.type in ("fail", "lapse", "crash", "expire", "deny") and meta.get("error_code"):
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
