"""A job as text for the command line: its facts, timeline, attempts, steps and the reason it waits."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from datetime import datetime
from itertools import pairwise
from typing import Any

from rich.text import Text

from holdfast.cli.output import Cell, clock, counted, line, moment, print_fields, span, state_text, table, write
from holdfast.engine.job import Attempt, Event, Job, Liveness
from holdfast.engine.states import State
from holdfast.engine.steps import NO_LIMIT, Progress, Step
from holdfast.engine.trace import plain_tags
from holdfast.features.approvals.model import Approval, CastVote
from holdfast.features.dead_letters.model import DeadLetterGroup
from holdfast.features.jobs.model import Story
from holdfast.features.schedules.model import MadeFrom
from holdfast.stores.vault import shown

STEP_COLUMNS = ("n", "kind", "name", "state", "tries", "took", "value or error")
STYLES = {"done": "green", "failed": "red", "requested": "magenta", "not finished": "dim"}
SHORT = 80


def reason_text(story: Story) -> str | None:
    """What the job waits for, such as ``waits for event payment.settled with invoice = 7 until …``; None for a job that
    waits in no durable call."""
    if story.lease_expired_at is not None:
        return lost_text(story.lease_expired_at)
    step = story.waits_in
    unmet = [parent for parent in story.parents if parent.state is not State.SUCCEEDED]
    if story.job.state is State.QUEUED and story.job.attempt == 0 and unmet:
        return f"waits for {', '.join(f'{line(p.name or p.job_id)} ({p.state})' for p in unmet)}"
    if story.approval is not None:
        return _approval_text(story.approval)
    if step is None:
        return None
    until = "" if step.until is None else f" until {moment(step.until)}"
    match step.kind:
        case "sleep":
            return f"sleeps{until}" + ("" if step.name == "sleep" else f" ({line(step.name)})")
        case "event":
            return f"waits for event {line(step.name)}{_match_text(step.wanted)}{until}"
        case "approval":
            return f"waits for approval: {line(step.name)}"
        case _:
            tries = f"{step.tries} {'try' if step.tries == 1 else 'tries'}"
            at = "" if step.until is None else f" at {moment(step.until)}"
            return f"step {line(step.name)} is tried again{at}, after {tries}: {_error(step.error)}"


def lost_text(expired_at: datetime) -> str:
    """``worker lost, lease expired 2027-01-31 03:00:00 UTC, waiting for take-over``"""
    return f"worker lost, lease expired {moment(expired_at)[:19]} UTC, waiting for take-over"


def short_reason(job: Job, note: dict[str, Any]) -> str:
    """What a job of a list waits for, from the note of its last transition."""
    endless = job.due_at is None or job.due_at - job.created_at > NO_LIMIT
    until = "" if endless or job.due_at is None else f" until {moment(job.due_at)}"
    if note.get("held") == "parents":
        return "waits for jobs of its workflow"
    if "waits_for" in note:
        return line(f"waits for event {note['waits_for']}{until}")
    if "sleeps" in note:
        return line(f"sleeps{until}")
    if "approval" in note:
        return line(f"waits for approval: {note['approval']}")
    if "step" in note:
        return line(f"step {note['step']} failed: {note.get('error', '')}")
    if until and job.state is State.QUEUED and "held" not in note:
        return line(f"delayed{until}")
    return line(note.get("reason", ""))


def _approval_text(approval: Approval) -> str:
    expires = "" if approval.expires_at is None else f", expires {moment(approval.expires_at)}"
    votes = f"{approval.approvals} of {approval.quorum} approvals"
    return f"waits for approval: {line(approval.name)} ({approval.id}), {votes}{expires}"


def _match_text(wanted: dict[str, Any] | None) -> str:
    parts = [f"{name} = {_json(value)}" for name, value in sorted((wanted or {}).items())]
    return line(f" with {', '.join(parts)}") if parts else ""


def print_steps(steps: Sequence[Step], job: Job, *, lost: bool = False) -> None:
    """Print the durable steps. ``lost``: the worker of the attempt is lost."""
    rows: list[list[Cell]] = [
        [
            str(step.n),
            line(step.kind),
            line(step.name, SHORT),
            _styled(state_of(step, job, lost=lost)),
            str(step.tries),
            _took(step),
            _value(step),
        ]
        for step in steps
    ]
    table(STEP_COLUMNS, rows, keep=("n", "kind", "tries", "took"))


def state_of(step: Step, job: Job, *, lost: bool = False) -> str:
    if step.over:
        return "done" if step.error is None else "failed"
    if step.kind == "sleep" and step.is_late:
        return "done"
    if job.state.finished:
        return "not finished"
    if step.running and job.state is State.IN_PROGRESS:
        return "worker lost" if lost else f"running since {moment(step.started_at)}"
    until = "" if step.until is None else f" until {moment(step.until)}"
    match step.kind:
        case "sleep":
            return f"sleeping{until}"
        case "event":
            return f"waiting{until}"
        case "approval":
            return "requested"
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
        return line(_decision(value), SHORT)
    if step.kind == "event" and isinstance(value, dict):
        value = value.get("data")
    if (sealed := shown(value)) is not value:
        return str(sealed)
    return "" if value is None else line(_json(value), SHORT)


def _decision(value: dict[str, Any]) -> str:
    """``denied by bob: too much; ada approved``"""
    votes = [vote for vote in value.get("votes") or [] if isinstance(vote, dict)]
    past = {"approve": "approved", "deny": "denied"}
    words = {str(vote.get("person")): past.get(str(vote.get("verdict"))) for vote in votes}
    state = str(value.get("state"))
    people = ", ".join(person for person, word in words.items() if word == state)
    comment = votes[-1].get("comment") if votes else None
    others = "".join(f"; {person} {word}" for person, word in words.items() if word != state)
    return state + (f" by {people}" if people else "") + (f": {comment}" if comment else "") + others


def _error(error: dict[str, Any] | None) -> str:
    if error is None:
        return ""
    kind = str(error.get("type") or "").removeprefix("builtins.")
    return line(": ".join(part for part in (kind, str(error.get("message") or "")) if part))


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


COLUMNS = ("time (UTC)", "after", "type", "from → to", "try", "by", "")
# Shown in other columns or sections, or too long for a line.
ELSEWHERE = frozenset({"error_code", "error_message", "due_at", "reason", "traceback", "log"})
_UUID = re.compile(r"\b([0-9a-f]{8})(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b")

# A wait of up to this many seconds is shown as a duration, a longer one as a time.
SOON = 12 * 3600


def print_timeline(events: Sequence[Event], votes: Sequence[CastVote] = ()) -> None:
    table(COLUMNS, timeline(events, votes), keep=COLUMNS[:5])


def timeline(events: Sequence[Event], votes: Sequence[CastVote] = ()) -> list[list[Cell]]:
    """One row per event and vote; the date is given only in the first row of a day. A vote that decides is at the time
    of its event, and comes first."""
    rows: list[Event | CastVote] = sorted([*votes, *events], key=lambda row: row.at) if votes else [*events]
    return [_row(row, before) for before, row in pairwise([None, *rows]) if row is not None]


def _row(event: Event | CastVote, before: Event | CastVote | None) -> list[Cell]:
    same_day = before is not None and before.at.date() == event.at.date()
    when = [
        clock(event.at).rjust(23) if same_day else moment(event.at),
        "" if before is None else f"+{span(event.at - before.at)}",
    ]
    if isinstance(event, CastVote):
        data = "" if event.data is None else f" with {_json(event.data)}"
        comment = f": {event.comment}" if event.comment else ""
        details = line(f"{event.approval}: {event.verdict} by {event.how}{data}{comment}")
        return [*when, "vote", "", "", short_actor(event.person), details]
    return [
        *when,
        event.type,
        transition(event),
        str(event.attempt) if event.attempt else "",
        short_actor(event.actor),
        line(event_details(event)),
    ]


def transition(event: Event) -> Text:
    if event.from_state is None:
        return Text.assemble("→ ", state_text(event.to_state))
    return Text.assemble(state_text(event.from_state), " → ", state_text(event.to_state))


def event_details(event: Event) -> str:
    """The details of an event: the error, the reason, the time of the next attempt, and the rest of its metadata."""
    meta = event.meta
    parts = []
    if event.type in ("fail", "lease_expired", "crash", "expire", "deny") and meta.get("error_code"):
        parts.append(f"{meta['error_code']}: {meta.get('error_message') or ''}".rstrip(": "))
    if meta.get("reason"):
        parts.append(str(meta["reason"]))
    if meta.get("due_at"):
        parts += _again(str(meta["due_at"]), event.at)
    parts += [f"{name}: {_short_value(value)}" for name, value in meta.items() if name not in ELSEWHERE]
    return "; ".join(parts)


def _again(due: str, at: datetime) -> list[str]:
    """When the job continues; empty for a wait without a time limit."""
    try:
        due_at = datetime.fromisoformat(due)
        # Rounded up: the ledger stores the due time in whole milliseconds.
        wait = math.ceil(max(0.0, (due_at - at).total_seconds()) * 1000) / 1000
    except (ValueError, TypeError):  # not written by Holdfast
        return [f"due {due}"]
    if due_at - at > NO_LIMIT:
        return []
    return [f"again in {span(wait)}" if wait < SOON else f"again at {moment(due_at)}"]


def _short_value(value: Any) -> str:
    return value if isinstance(value, str) else repr(value)


def short_actor(actor: str) -> str:
    """An actor with its UUIDs cut to their first eight digits."""
    return line(_UUID.sub(r"\1", actor), 80)


def print_attempts(attempts: Sequence[Attempt], *, lost: bool = False) -> None:
    """Print the attempts. ``lost``: the worker of the one that has not ended is lost."""
    rows: list[list[Cell]] = [
        [
            str(attempt.attempt),
            moment(attempt.started_at),
            "" if attempt.ended_at is None else span(attempt.ended_at - attempt.started_at),
            attempt.outcome or ("worker lost" if lost else "running"),
            short_actor(attempt.worker),
            line(f"{attempt.error_code}: {attempt.error_message}" if attempt.error_code else ""),
        ]
        for attempt in attempts
    ]
    table(("try", "began (UTC)", "took", "outcome", "by", "error"), rows, keep=("try", "began (UTC)", "took"))
    for attempt in attempts:
        if attempt.payload is not None:
            write(
                f"payload of attempt {attempt.attempt}: {line(json.dumps(attempt.payload, ensure_ascii=False), 2_000)}"
            )


def print_chain(chain: Sequence[Job], shown_id: str) -> None:
    """Print a job and its retries as new jobs, one row each."""
    rows: list[list[Cell]] = []
    for number, job in enumerate(chain, 1):
        here = " (this one)" if job.id == shown_id else ""
        error = line(f"{job.error_code}: {job.error_message}") if job.error_code else ""
        rows.append([str(number), f"{job.id}{here}", state_text(job.state), error])
    table(("try", "job", "state", "error"), rows)


# --- the facts of a job, one line each ---


def _progress(progress: Progress | None) -> str | None:
    """``42 %: reading page 7 (attempt 1)``"""
    if progress is None:
        return None
    share = None if progress.fraction is None else f"{progress.fraction:.0%}".replace("%", " %")
    text = ": ".join(part for part in (share, progress.message) if part)
    return f"{text} (attempt {progress.attempt})" if text else None


def _reports(liveness: Liveness | None) -> str | None:
    """``12 in attempt 1, the last 2027-01-31 03:00:00.000``"""
    if liveness is None or liveness.reported_at is None:
        return None
    return f"{liveness.reports:,} in attempt {liveness.attempt}, the last {moment(liveness.reported_at)}"


def _heartbeats(liveness: Liveness | None) -> str | None:
    """``40 of the lease of worker-1, the last 2027-01-31 03:00:00.000``"""
    if liveness is None or liveness.renewed_at is None or not liveness.renewals:
        return None
    return f"{liveness.renewals:,} of the lease of {liveness.worker}, the last {moment(liveness.renewed_at)}"


def _origin(made: MadeFrom | None) -> str | None:
    """``schedule nightly, for 2027-01-31 03:00:00.000; template monthly, version 3``"""
    if made is None:
        return None
    schedule = None if made.due_at is None else f"schedule {made.schedule}, for {moment(made.due_at)}"
    template = None if made.template is None else f"template {made.template}, version {made.template_version}"
    return "; ".join(part for part in (schedule, template) if part)


def _group(group: DeadLetterGroup | None) -> str | None:
    """``3f2a9c0b1d4e5f60: 17 open, 20 failures since 2027-01-31 03:00:00.000``"""
    if group is None:
        return None
    note = f"; {group.noted_by}: {group.note}" if group.note else ""
    failures = f"{counted(group.times, 'failure')} since {moment(group.first_at)}"
    return f"{group.fingerprint}: {group.open:,} open, {failures}{note}"


def _running(story: Story) -> str | None:
    """``step charge since 2027-01-31 03:00:00.000``"""
    if story.lease_expired_at is not None:
        return None
    running = [f"step {step.name} since {moment(step.started_at)}" for step in story.steps if step.running]
    return ", ".join(running) if running and story.job.state is State.IN_PROGRESS else None


def _retries(job: Job) -> str:
    """``2 of 9 used; all of them span up to 5 h 31 m``"""
    if job.max_attempts == 1:
        return "none"
    return f"{job.retries} of {job.max_attempts - 1} used; all of them span up to {span(job.retry_span)}"


def print_facts(story: Story, agent_disabled: str | None) -> None:
    job, call = story.job, story.waits_in
    endless = call is not None and call.until is None

    def when(at: datetime | None) -> str | None:
        return None if at is None else moment(at)

    write(f"{job.kind}  {job.id}")
    print_fields(
        [
            ("state", state_text(job.state)),
            ("why", reason_text(story)),
            (
                "error" if job.state.finished else "last error",
                f"{job.error_code}: {job.error_message}" if job.error_code else None,
            ),
            ("running", _running(story)),
            ("progress", _progress(Progress.saved(story.checkpoints))),
            ("reports", _reports(story.liveness)),
            ("heartbeats", _heartbeats(story.liveness)),
            ("tenant", job.tenant),
            ("domain", job.domain),
            ("queue", job.queue),
            ("priority", str(job.priority)),
            ("attempts", f"{job.attempt} started, {counted(job.crashes, 'lost worker')}"),
            ("retries", _retries(job)),
            ("enqueued", f"{moment(job.created_at)} by {job.enqueued_by} ({job.source_system})"),
            ("made from", _origin(story.made_from)),
            ("not before", when(job.run_at)),
            ("queued", when(job.queued_at)),
            ("due", None if endless else when(job.due_at)),
            ("deadline", when(job.deadline_at)),
            ("started", when(job.started_at)),
            ("finished", when(job.finished_at)),
            ("updated", when(job.updated_at)),
            ("error at", when(job.last_error_at) if job.error_code else None),
            ("worker", job.worker and short_actor(job.worker).removeprefix("worker ")),
            ("key", job.idempotency_key),
            ("tags", ", ".join(plain_tags(job.tags))),
            ("trace", job.trace.traceparent),
            ("executor", job.executor),
            ("agent", job.agent),
            ("agent disabled", agent_disabled),
            ("correlation", job.correlation_id),
            ("causation", job.causation_id),
            ("parent", job.parent_id),
            ("workflow", job.workflow_id),
            ("part", job.part),
            ("reference", job.external_ref),
            ("source", story.references.source_ref),
            ("target", story.references.target_ref),
            ("payload at", story.references.payload_ref),
            ("result at", None if story.result is None else story.result.ref),
            ("retry of", job.retry_of),
            ("group", _group(story.group)),
            ("redriven as", next((remade.new_id for remade in story.remade if remade.job_id == job.id), None)),
            ("in place of", next((remade.job_id for remade in story.remade if remade.new_id == job.id), None)),
            ("forked from", story.forked_from),
            *(("fork", fork) for fork in story.forks),
            ("depth", None if job.depth is None else f"{job.depth} subscriptions behind it"),
        ]
    )
