"""``holdfast jobs cancel | redrive | discard | replace-payload | reschedule | move``.

A refusal is not an error: it is printed in the row of its job, and sets the exit code.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, TypedDict

import typer

from holdfast import config
from holdfast.cli import options
from holdfast.cli.failures import NOT_FOUND, REFUSED
from holdfast.cli.options import document
from holdfast.cli.output import duration, emit, instant, state_text, table
from holdfast.cli.session import AnyTenant, full_id
from holdfast.engine.ids import parse_id
from holdfast.engine.job import JobSpec, Verdict
from holdfast.engine.order import Move
from holdfast.engine.payload import encode
from holdfast.errors import InvalidInput, InvalidSetting
from holdfast.features.dead_letters.operations import DeadLetters, Operations
from holdfast.features.jobs.commands import commands
from holdfast.features.jobs.operations import Jobs
from holdfast.features.payloads.model import NO_RULE
from holdfast.kind import PAYLOAD_LIMIT, Options, make_spec, pack_payload
from holdfast.stores.ids import new_id
from holdfast.stores.requests import Reschedule
from holdfast.stores.session import Session
from holdfast.stores.vault import Vault

# Explanations of the stable reasons.
REASONS = {
    "not_found": "no such job in this tenant",
    "already_finished": "it has ended already",
    "not_dead": "it is not a dead letter",
    "not_waiting": "it is not waiting: it runs or has ended (redrive a dead letter instead)",
    "job_held": "it is held back, and not because of its time (see: jobs show)",
    "limit_too_low": "it has used more attempts than that",
    "target_not_found": "the other job is not in this tenant",
    "target_not_waiting": "the other job is not waiting",
    "other_queue": "the other job is in another queue",
    "reason_required": "a reason is required",
    "no_such_step": "it has no such recorded step",
    "step_ambiguous": "several of its steps have this name: give a number",
}
DONE = {
    "set-external-ref": "reference set",
    "cancel": "cancelled",
    "redrive": "redriven",
    "discard": "discarded",
    "reschedule": "rescheduled",
    "replace-payload": "replaced",
    "move": "moved",
}

MaxAttempts = Annotated[
    int | None,
    typer.Option("--max-attempts", metavar="N", min=1, max=101, help="New maximum of attempts for these jobs."),
]
StartTime = Annotated[str | None, typer.Option("--at", metavar="TIME", help="Start time: ISO 8601 with a time zone.")]
StartDelay = Annotated[str | None, typer.Option("--in", metavar="SPAN", help="Delay from now: 90, 5m, 1h30m.")]


class _Start(TypedDict):
    at: datetime | None
    delay: float | None


def start_time(at: str | None, delay: str | None) -> _Start:
    return {
        "at": None if at is None else instant(at, "--at"),
        "delay": None if delay is None else duration(delay, "--in"),
    }


@commands.add("cancel", "holdfast jobs cancel ID1 ID2 --reason 'wrong month'")
def cancel(session: AnyTenant, jobs: options.JobIds, reason: options.Reason = None) -> None:
    """Cancel jobs that have not finished."""
    with session.connect() as client:
        verdicts = Jobs(client).cancel(*_ids(client, jobs), reason=reason)
    _show("cancel", verdicts, session.as_json)


@commands.add(
    "redrive",
    "holdfast jobs redrive ID",
    "holdfast jobs redrive ID1 ID2 --max-attempts 10",
    "holdfast jobs redrive ID --from-step 3 --reason 'the address was wrong'",
    "holdfast jobs redrive ID --from-step charge",
    "holdfast jobs redrive ID --in 2h --reason 'the bank is back at noon'",
    """holdfast jobs redrive ID --payload '{"order": 8}' --reason 'it was the number'""",
)
def redrive(
    session: AnyTenant,
    jobs: options.JobIds,
    max_attempts: MaxAttempts = None,
    from_step: Annotated[
        str | None,
        typer.Option("--from-step", metavar="N|NAME", help="Run this step and all later ones again (see: jobs show)."),
    ] = None,
    at: StartTime = None,
    delay: StartDelay = None,
    payload: Annotated[
        str | None,
        typer.Option(
            "--payload",
            metavar="JSON",
            help="Replace the job by a new one with this payload: JSON, @file, or - for stdin (one job only).",
        ),
    ] = None,
    reason: options.Reason = None,
) -> None:
    """Redrive dead letters: put them back into their queue with all attempts restored.

    Completed steps are not run again, unless --from-step names the first one to repeat. --payload creates a new job and
    discards the old one; `jobs show` links them. To redrive whole groups: holdfast dead-letters redrive.
    """
    step = None if from_step is None else _step(from_step)
    if payload is not None:
        if len(jobs) != 1 or any(option is not None for option in (step, max_attempts, at, delay)):
            raise InvalidSetting("--payload works for one job and without other options", code="conflicting_options")
        _redrive_as(session, jobs[0], payload, reason)
        return
    when = start_time(at, delay)
    with session.connect() as client:
        verdicts = Jobs(client).redrive(
            *_ids(client, jobs), reason=reason, from_step=step, max_attempts=max_attempts, **when
        )
    _show("redrive", verdicts, session.as_json)


@commands.add("discard", "holdfast jobs discard ID --reason 'customer is gone'")
def discard(session: AnyTenant, jobs: options.JobIds, reason: options.NeededReason) -> None:
    """Discard dead letters."""
    if not reason.strip():
        raise InvalidInput("discarding a dead letter needs a reason", code="reason_required")
    with session.connect() as client:
        verdicts = Jobs(client).discard(*_ids(client, jobs), reason=reason)
    _show("discard", verdicts, session.as_json)


@commands.add(
    "replace-payload",
    """holdfast jobs replace-payload ID '{"to": "ada@example.com"}' --reason 'wrong address'""",
    "holdfast jobs replace-payload ID @payload.json --reason 'wrong address'",
)
def replace_payload(
    session: AnyTenant,
    job: Annotated[str, typer.Argument(metavar="ID", help="Id of a waiting job.")],
    payload: Annotated[str, typer.Argument(metavar="PAYLOAD", help="JSON, @file, or - for stdin.")],
    reason: Annotated[str, typer.Option("--reason", metavar="TEXT", help="Why; recorded in the ledger.")],
) -> None:
    """Replace the payload of a waiting job whose kind allows it (holdfast rules set KIND --replaceable)."""
    value = document(payload)
    with session.connect() as client:
        (job_id,) = _ids(client, [job])
        verdict = Jobs(client).replace_payload(job_id, value, reason=reason)
    _show("replace-payload", [verdict], session.as_json)


@commands.add(
    "set-external-ref",
    "holdfast jobs set-external-ref ID crm-4711",
    "holdfast jobs set-external-ref ID --remove",
)
def set_external_ref(
    session: AnyTenant,
    job: Annotated[str, typer.Argument(metavar="ID", help="A job's id, or its first characters.")],
    external_ref: Annotated[
        str | None, typer.Argument(metavar="TEXT", help="Id of the same work in another system.")
    ] = None,
    remove: Annotated[bool, typer.Option("--remove", help="Remove the reference.")] = False,
) -> None:
    """Set the external reference of a job in any state. The audit trail records the old and the new one."""
    if (external_ref is None) is not remove:
        raise InvalidSetting("pass a reference, or --remove", code="conflicting_options")
    with session.connect() as client:
        (job_id,) = _ids(client, [job])
        verdict = Jobs(client).set_external_ref(job_id, external_ref)
    _show("set-external-ref", [verdict], session.as_json)


@commands.add(
    "reschedule",
    "holdfast jobs reschedule ID",
    "holdfast jobs reschedule ID1 ID2 --in 10m --reason 'the service is back at noon'",
    "holdfast jobs reschedule ID --at 2027-01-31T09:00:00Z --max-attempts 10",
)
def reschedule(
    session: AnyTenant,
    jobs: options.JobIds,
    at: StartTime = None,
    delay: StartDelay = None,
    max_attempts: MaxAttempts = None,
    reason: options.Reason = None,
) -> None:
    """Change the start time of delayed or retrying jobs; without an option, to now."""
    when = start_time(at, delay)
    Reschedule.of(when["at"], when["delay"], max_attempts)  # refuse before connecting
    with session.connect() as client:
        ids = _ids(client, jobs)
        verdicts = Jobs(client).reschedule(*ids, max_attempts=max_attempts, reason=reason, **when)
    _show("reschedule", verdicts, session.as_json)


@commands.add(
    "move",
    "holdfast jobs move ID --first",
    "holdfast jobs move ID --before OTHER --reason 'the auditors are here'",
    "holdfast jobs move ID --priority 10",
)
def move(
    session: AnyTenant,
    job: Annotated[str, typer.Argument(metavar="ID", help="Id of a waiting job.")],
    first: Annotated[bool, typer.Option("--first", help="Move it before all others of its priority.")] = False,
    last: Annotated[bool, typer.Option("--last", help="Move it behind all others of its priority.")] = False,
    before: Annotated[
        str | None,
        typer.Option("--before", metavar="ID", help="Move it directly before this job, with that job's priority."),
    ] = None,
    after: Annotated[
        str | None,
        typer.Option("--after", metavar="ID", help="Move it directly behind this job, with that job's priority."),
    ] = None,
    priority: Annotated[
        int | None,
        typer.Option(
            "--priority",
            metavar="N",
            help="New priority; without another option, the job goes last among that priority.",
        ),
    ] = None,
    reason: options.Reason = None,
) -> None:
    """Move a waiting job within its queue."""
    Move.of(first, last, before, after, priority)  # refuse before connecting
    with session.connect() as client:
        verdict = Jobs(client).move(
            full_id(client, job), first=first, last=last, before=before, after=after, priority=priority, reason=reason
        )
    _show("move", [verdict], session.as_json)


def _redrive_as(session: AnyTenant, job: str, payload: str, reason: str | None) -> None:
    with session.connect() as client:
        new = letters_of(client, session.url).redrive_as(parse_id(job), document(payload), reason=reason)
    if session.as_json:
        emit({"id": parse_id(job), "redriven_as": new})
    else:
        table(("id", "redriven as"), [[parse_id(job), new]])


def letters_of(client: Session, url: str | None = None) -> DeadLetters:
    """``app.dead_letters`` for a program that declares no kinds: the payload is used as given. It is sealed as the
    environment configures."""

    def prepare(kind: str, payload: Any, tenant: str) -> JobSpec:
        vault = Vault.of(config.artifact_location(config.database_url(url)), config.key_text())
        spec, _ = make_spec(kind, encode(payload, limit=PAYLOAD_LIMIT), Options(tenant=tenant), client)
        pack_payload(spec, tenant, NO_RULE, vault)
        return spec

    return DeadLetters(client, Operations(client, new_id), prepare)


def _ids(client: Session, jobs: list[str]) -> list[str]:
    return list(dict.fromkeys(full_id(client, job) for job in jobs))


def _step(text: str) -> int | str:
    """The number or the name of a step. Digits are a number: a step whose name is a number also has one."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else text


def _show(action: str, verdicts: list[Verdict], as_json: bool) -> None:
    if as_json:
        emit(verdicts)
    else:
        table(("id", "state", "answer"), [[v.id, state_text(v.state), answer(action, v)] for v in verdicts])
    raise typer.Exit(code(verdicts))


def answer(action: str, verdict: Verdict) -> str:
    if not verdict.refused:
        return DONE[action]
    reason = verdict.reason or "refused"
    return f"refused: {REASONS.get(reason, reason)} [{reason}]"


def code(verdicts: list[Verdict]) -> int:
    """The exit code: a refusal takes precedence over a missing job."""
    reasons = {verdict.reason for verdict in verdicts if verdict.refused}
    if reasons - {"not_found"}:
        return REFUSED
    return NOT_FOUND if reasons else 0
