"""``holdfast jobs cancel | redrive | fork | discard | replace-payload | reschedule | move``.

A refusal is not an error: it is printed in the row of its job, and sets the exit code.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import typer

from holdfast import config
from holdfast.cli.derived import derive
from holdfast.cli.failures import NOT_FOUND, REFUSED
from holdfast.cli.options import JobFilterOptions, JobState, document
from holdfast.cli.output import emit, say, state_text, table
from holdfast.cli.session import AnyTenant, full_id
from holdfast.engine.declared import Help
from holdfast.engine.ids import parse_id
from holdfast.engine.job import JobSpec, Verdict
from holdfast.engine.operation import operation
from holdfast.engine.order import Move
from holdfast.engine.payload import encode
from holdfast.engine.states import State
from holdfast.errors import InvalidInput, InvalidSetting, Refused
from holdfast.features.dead_letters.operations import DeadLetters
from holdfast.features.jobs.commands import commands
from holdfast.features.jobs.operations import Jobs
from holdfast.features.payloads.model import NO_RULE
from holdfast.kind import PAYLOAD_LIMIT, Options, make_spec, pack_payload
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
    "no_steps": "it has no recorded steps",
    "in_workflow": "it belongs to a workflow",
    "cleaned": "retention has deleted its steps",
    "restricted": "its kind is restricted",
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


@derive(commands, "cancel", AnyTenant, Jobs.cancel, "holdfast jobs cancel ID1 ID2 --reason 'wrong month'")
def cancel(session: AnyTenant, inputs: dict[str, Any]) -> None:
    _operate(session, Jobs.cancel, inputs)


@derive(
    commands,
    "redrive",
    AnyTenant,
    Jobs.redrive,
    "holdfast jobs redrive ID",
    "holdfast jobs redrive ID1 ID2 --max-attempts 10",
    "holdfast jobs redrive ID --from-step 3 --reason 'the address was wrong'",
    "holdfast jobs redrive ID --from-step charge",
    "holdfast jobs redrive ID --in 2h --reason 'the bank is back at noon'",
    """holdfast jobs redrive ID --payload '{"order": 8}' --reason 'it was the number'""",
)
def redrive(
    session: AnyTenant,
    inputs: dict[str, Any],
    payload: Annotated[
        str | None,
        Help("Replace the job by a new one with this payload: JSON, @file, or - for stdin (one job only).", "JSON"),
    ] = None,
) -> None:
    """Redrive dead letters: put them back into their queue with all attempts restored.

    Completed steps are not run again, unless --from-step names the first one to repeat. --payload creates a new job and
    discards the old one; `jobs show` links them. To redrive whole groups: holdfast dead-letters redrive.
    """
    if payload is not None:
        (job, *others), reason = inputs.pop("job_ids"), inputs.pop("reason", None)
        if others or inputs:
            raise InvalidSetting("--payload works for one job and without other options", code="conflicting_options")
        _redrive_as(session, job, payload, reason)
        return
    if "from_step" in inputs:
        inputs["from_step"] = _step(str(inputs["from_step"]))
    _operate(session, Jobs.redrive, inputs)


@derive(commands, "discard", AnyTenant, Jobs.discard, "holdfast jobs discard ID --reason 'customer is gone'")
def discard(session: AnyTenant, inputs: dict[str, Any]) -> None:
    if not inputs["reason"].strip():
        raise InvalidInput("discarding a dead letter needs a reason", code="reason_required")
    _operate(session, Jobs.discard, inputs)


@derive(
    commands,
    "replace-payload",
    AnyTenant,
    Jobs.replace_payload,
    """holdfast jobs replace-payload ID '{"to": "ada@example.com"}' --reason 'wrong address'""",
    "holdfast jobs replace-payload ID @payload.json --reason 'wrong address'",
)
def replace_payload(session: AnyTenant, inputs: dict[str, Any]) -> None:
    inputs["payload"] = document(inputs["payload"])
    _operate(session, Jobs.replace_payload, inputs)


@derive(
    commands,
    "set-external-ref",
    AnyTenant,
    Jobs.set_external_ref,
    "holdfast jobs set-external-ref ID crm-4711",
    "holdfast jobs set-external-ref ID --remove",
    without=("external_ref",),
)
def set_external_ref(
    session: AnyTenant,
    inputs: dict[str, Any],
    external_ref: Annotated[
        str | None, typer.Argument(metavar="TEXT", help="Id of the same work in another system.")
    ] = None,
    remove: Annotated[bool, Help("Remove the reference.")] = False,
) -> None:
    """Set the external reference of a job in any state. The audit trail records the old and the new one."""
    if (external_ref is None) is not remove:
        raise InvalidSetting("pass a reference, or --remove", code="conflicting_options")
    _operate(session, Jobs.set_external_ref, inputs | {"external_ref": external_ref})


@derive(
    commands,
    "reschedule",
    AnyTenant,
    Jobs.reschedule,
    "holdfast jobs reschedule ID",
    "holdfast jobs reschedule ID1 ID2 --in 10m --reason 'the service is back at noon'",
    "holdfast jobs reschedule ID --at 2027-01-31T09:00:00Z --max-attempts 10",
)
def reschedule(session: AnyTenant, inputs: dict[str, Any]) -> None:
    Reschedule.of(inputs.get("at"), inputs.get("delay"), inputs.get("max_attempts"))  # refuse before connecting
    _operate(session, Jobs.reschedule, inputs)


@derive(
    commands,
    "move",
    AnyTenant,
    Jobs.move,
    "holdfast jobs move ID --first",
    "holdfast jobs move ID --before OTHER --reason 'the auditors are here'",
    "holdfast jobs move ID --priority 10",
)
def move(session: AnyTenant, inputs: dict[str, Any]) -> None:
    Move.of(**{name: value for name, value in inputs.items() if name not in ("job_id", "reason")})
    _operate(session, Jobs.move, inputs)


MOST_FORKS = 1_000
"""Jobs that one command forks. They are chosen before the first fork, which matches the same selection."""


@derive(
    commands,
    "fork",
    AnyTenant,
    Jobs.fork,
    "holdfast jobs fork ID --from-step charge --reason 'wrong account'",
    "holdfast jobs fork --kind pay --state dead_letter --since 1d --from-step charge --fork-key rerun-7",
    without=("job_id",),
)
def fork(
    session: AnyTenant,
    inputs: dict[str, Any],
    job_ids: Annotated[
        list[str] | None,
        typer.Argument(metavar="[ID…]", help="The job's id, or its first characters. Several may be given."),
    ] = None,
    state: JobState = None,
    *,
    which: JobFilterOptions,
) -> None:
    """Start new jobs that take over the recorded steps of others before --from-step and do the rest themselves.

    The old jobs stay as they are. What they did from that step on is done again: whether that is right (a payment, a
    mail) is your decision. Approvals are asked again. Name the jobs, or select up to 1,000 with options.
    """
    inputs["from_step"] = _step(str(inputs["from_step"]))
    answers = []
    with session.connect() as client:
        client.vault = Vault.of(config.artifact_location(client.store.url), config.key_text())
        jobs = Jobs(client)
        for job in _to_fork(client, jobs, job_ids or [], state, which):
            try:
                made = jobs.fork(job, **inputs)
                answers.append(Forked(job, made.id, made.created))
            except Refused as error:
                if len(job_ids or ()) == 1:
                    raise
                answers.append(Forked(job, None, False, error.code))
    if session.as_json:
        emit(answers)
    elif answers:
        table(("id", "fork", "answer"), [[each.id, each.fork or "", each.answer] for each in answers])
    else:
        say("No matching jobs.")
    raise typer.Exit(code([Verdict(each.id, None, each.reason is not None, each.reason) for each in answers]))


@dataclass(frozen=True, slots=True)
class Forked:
    """The answer for one job. ``reason`` is the code of a refusal."""

    id: str
    fork: str | None
    created: bool
    reason: str | None = None

    @property
    def answer(self) -> str:
        if self.reason is not None:
            return f"refused: {REASONS.get(self.reason, self.reason)} [{self.reason}]"
        return "forked" if self.created else "forked before, with this key"


def _to_fork(client: Session, jobs: Jobs, ids: list[str], state: State | None, which: Any) -> list[str]:
    wanted = which.wanted(client.run(client.store.clock.now()))
    if ids and (wanted or state):
        raise InvalidSetting("pass ids or a selection, not both", code="conflicting_options")
    if ids:
        return [*dict.fromkeys(full_id(client, each) for each in ids)]
    if not wanted and state is None:
        raise InvalidInput("name jobs, or select some", code="nothing_named")
    found = jobs.list(**wanted, state=state, limit=MOST_FORKS + 1, payloads=False)
    if len(found) > MOST_FORKS:
        raise InvalidInput(
            f"more than {MOST_FORKS:,} jobs match", code="too_many_jobs", fix="Select fewer, with --since and --until."
        )
    return [job.id for job in found]


def _operate(session: AnyTenant, form: operation[..., Any], inputs: dict[str, Any]) -> None:
    """Call the operation and print its verdicts. Ids may be the first characters of one."""
    with session.connect() as client:
        given = inputs.pop("job_ids", None) or [inputs.pop("job_id")]
        ids = dict.fromkeys(full_id(client, job) for job in given)
        result = getattr(Jobs(client), form.program.__name__)(*ids, **inputs)
    _show(form.program.__name__.replace("_", "-"), result if isinstance(result, list) else [result], session.as_json)


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

    return DeadLetters(client, prepare)


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
