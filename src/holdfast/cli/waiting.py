"""What a job has behind it and what it waits for, in words: its durable calls, and the one that it stands in."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from rich.text import Text

from holdfast.cli.output import Cell, line, table
from holdfast.cli.words import moment, span
from holdfast.engine.job import Job
from holdfast.engine.states import State
from holdfast.engine.steps import NO_LIMIT, Step
from holdfast.features.approvals.model import Gate
from holdfast.features.jobs.views import Story
from holdfast.stores.vault import shown

STEP_COLUMNS = ("n", "kind", "name", "state", "tries", "took", "value or error")
STYLES = {"done": "green", "failed": "red", "asked": "magenta", "not over": "dim"}
SHORT = 80


def reason(story: Story) -> str | None:
    """``waits for event payment.settled with invoice = 7 until …``; None for a job that does not wait in a call."""
    step = story.waits_in
    unmet = [parent for parent in story.parents if parent.state is not State.SUCCEEDED]
    if story.job.state is State.QUEUED and story.job.attempt == 0 and unmet:
        return f"waits for {', '.join(f'{line(p.name or p.job_id)} ({p.state})' for p in unmet)}"
    if story.gate is not None:
        return _asks(story.gate)
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
    if "gate" in note:
        return line(f"asks: {note['gate']}")
    if "step" in note:
        return line(f"step {note['step']} failed: {note.get('error', '')}")
    return line(note.get("reason", ""))


def _asks(gate: Gate) -> str:
    expires = "" if gate.expires_at is None else f", expires {moment(gate.expires_at)}"
    return f"asks: {line(gate.name)} (gate {gate.id}), {gate.approvals} of {gate.quorum} approvals{expires}"


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
