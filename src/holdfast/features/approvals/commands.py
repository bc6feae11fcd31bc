"""``holdfast approvals …``."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any

import typer

from holdfast import config
from holdfast.cli import options
from holdfast.cli.options import document, merged, pairs, secret_of
from holdfast.cli.output import (
    Cell,
    age,
    duration,
    emit,
    facts,
    heading,
    line,
    moment,
    print_document,
    say,
    span,
    state_text,
    table,
    write,
)
from holdfast.cli.session import AnyTenant, scope
from holdfast.cli.tree import Commands
from holdfast.engine.ids import parse_id
from holdfast.errors import InvalidInput, InvalidSetting, NotFound
from holdfast.features.approvals.forms import Field, as_json, fields, plainly
from holdfast.features.approvals.model import Approval, ApprovalState, Vote, gate_of_token
from holdfast.features.approvals.operations import ApprovalRequest, Approvals, gate_of

commands = Commands("What waits for people: look, and decide.")

PAGE, MOST = 50, 1000
TYPES = {
    "string": "text",
    "integer": "whole number",
    "boolean": "yes or no",
    "array": "list",
    "null": "nothing",
}
OVER = "over"
AFTERWARDS = {"deny": "then it is denied", "approve": "then it is approved", "remind": "then people are asked again"}


class Shown(StrEnum):
    OPEN = "open"
    APPROVED = "approved"
    DENIED = "denied"
    EXPIRED = "expired"
    WITHDRAWN = "withdrawn"
    ALL = "all"

    @property
    def state(self) -> ApprovalState | None:
        return None if self is Shown.ALL else self.value  # type: ignore[return-value]


@commands.add(
    "list",
    "holdfast approvals list --approver ada@example.com",
    "holdfast approvals list --name big-payment --state all --json",
)
def list_gates(
    session: AnyTenant,
    approver: Annotated[
        str | None, typer.Option("--approver", metavar="WHO", help="Only what this person may decide.")
    ] = None,
    name: Annotated[str | None, typer.Option("--name", metavar="GATE", help="Only gates of this name.")] = None,
    state: Annotated[
        Shown, typer.Option("--state", metavar="STATE", help=f"In this state: {', '.join(Shown)}.")
    ] = Shown.OPEN,
    job: Annotated[str | None, typer.Option("--job", metavar="ID", help="Only what this job asks.")] = None,
    limit: options.Limit = PAGE,
    after: Annotated[
        str | None, typer.Option("--after", metavar="CURSOR", help="The next page: the id of the last gate seen.")
    ] = None,
) -> None:
    """List what waits for people, the oldest first."""
    with session.connect() as client:
        now = client.run(client.store.clock.now())
        found = Approvals(client).list(
            state=state.state,
            name=name,
            job_id=None if job is None else parse_id(job),
            approver=approver,
            after=after,
            limit=min(limit + 1, MOST),  # one more than asked tells whether there is another page
        )
    gates, more = found[:limit], len(found) > limit or len(found) == MOST
    session.print_list(
        gates,
        {
            "id": lambda gate: gate.id,
            **session.tenants,
            "name": lambda gate: line(gate.name),
            **({} if state is Shown.OPEN else {"state": lambda gate: state_text(gate.state)}),
            "age": lambda gate: age(gate.opened_at, now),
            "left": lambda gate: _left(gate, now),
            "approvals": lambda gate: f"{gate.approvals}/{gate.quorum}",
            "who may": lambda gate: line(who_may(gate)),
            "summary": lambda gate: line(gate.summary),
        },
        none="Nothing waits for people." if state is Shown.OPEN else "There are no such gates.",
        keep=("id", "state", "age", "left", "approvals"),
    )
    if more:
        say(f"There are more: --after {gates[-1].id}")


def _left(gate: Approval, now: datetime) -> str:
    if gate.expires_at is None or gate.state != "open":
        return ""
    left = (gate.expires_at - now).total_seconds()
    return span(left) if left > 0 else OVER


def who_may(gate: Approval) -> str:
    people = gate.people or ("anybody",)
    may_not = gate.not_requester and (not gate.people or gate.requester in gate.people)
    return ", ".join(people) + (f", but not {gate.requester}" if may_not else "")


@commands.add("show", "holdfast approvals show 01a1de74-eb8c-70f1-843b-cac5f6817387")
def show(session: AnyTenant, gate: options.GateId) -> None:
    """Show a gate: what is asked, who may decide, what was said so far, and how to decide it."""
    with session.connect() as client:
        now = client.run(client.store.clock.now())
        try:
            found = Approvals(client).get(gate)
        except NotFound as error:
            fix = "Is it a job's? Try: holdfast approvals list --job ID. Is it another tenant's? Try --all-tenants."
            raise NotFound(error.message, fix=fix) from None
    if session.as_json:
        emit(found)
        return
    _print_facts(found, now)
    if found.gate.data is not None:
        print_document("Data", found.gate.data)
    asked = fields(found.gate.form) if found.gate.form is not None else []
    if asked:
        heading("Form")
        _print_form(asked)
    elif found.gate.form is not None:
        print_document("Form", found.gate.form)
    if found.votes:
        heading("Said")
        _print_votes(found.votes)
    if found.gate.state == "open":
        say(f"\nTo decide it:\n{to_type(found.gate, asked)}")


def _print_facts(found: ApprovalRequest, now: datetime) -> None:
    gate, job = found.gate, found.job
    write(f"{gate.name}  {gate.id}")
    facts(
        [
            ("summary", gate.summary),
            ("state", state_text(gate.state)),
            ("asked", f"{moment(gate.opened_at)}, {age(gate.opened_at, now)} ago"),
            ("decided", None if gate.decided_at is None else moment(gate.decided_at)),
            ("who may", who_may(gate)),
            ("approvals", f"{gate.approvals} of {gate.quorum}"),
            ("expires", _expiry(gate, now)),
            ("reminders", _reminders(gate)),
            ("escalation", _escalation(gate)),
            ("if denied", "the job goes on, and deals with it" if gate.on_deny == "resume" else "the job fails"),
            ("tenant", gate.tenant),
            ("job", f"{job.kind}  {job.id}  {job.state}, enqueued by {job.enqueued_by}"),
        ]
    )


def _expiry(gate: Approval, now: datetime) -> str | None:
    if gate.expires_at is None or gate.state != "open":
        return None
    left = _left(gate, now)
    when = f"{moment(gate.expires_at)}, {left if left == OVER else f'in {left}'}"
    return f"{when}; {AFTERWARDS.get(gate.on_expire, gate.on_expire)}"


def _reminders(gate: Approval) -> str | None:
    upcoming = f", the next {moment(gate.remind_at)}" if gate.remind_at and gate.state == "open" else ""
    return f"{gate.reminders} so far{upcoming}" if gate.reminders or upcoming else None


def _escalation(gate: Approval) -> str | None:
    if not gate.escalate_to:
        return None
    people = ", ".join(gate.escalate_to)
    if gate.escalated_at is not None:
        return f"{moment(gate.escalated_at)} to {people}"
    return f"not yet; {moment(gate.escalate_at)} to {people}" if gate.escalate_at and gate.state == "open" else None


def _print_form(asked: Sequence[Field]) -> None:
    rows: list[list[Cell]] = [
        [
            line(field.name),
            line(" or ".join(TYPES.get(kind, kind) for kind in field.types) or "anything"),
            "yes" if field.required else "no",
            line(", ".join(map(plainly, field.choices)) or ", ".join(field.bounds)),
            line(field.about or ""),
        ]
        for field in asked
    ]
    table(("field", "type", "required", "allowed", "about"), rows, keep=("required",))


def _print_votes(votes: Sequence[Vote]) -> None:
    rows: list[list[Cell]] = [
        [
            moment(vote.at),
            line(vote.person),
            vote.verdict,
            line(vote.how),
            line(vote.comment or ""),
            line("" if vote.data is None else plainly(vote.data)),
        ]
        for vote in votes
    ]
    table(("time (UTC)", "person", "verdict", "how", "comment", "data"), rows, keep=("time (UTC)", "verdict"))


def to_type(gate: Approval, asked: Sequence[Field]) -> str:
    """What to type, ready to be filled in."""
    where = "" if scope(None) == gate.tenant else f" --tenant {shlex.quote(gate.tenant)}"
    filled = "".join(f" --field {shlex.quote(f'{field.name}=…')}" for field in asked if field.required)
    if gate.form is not None and not asked:
        filled = " --data '{…}'"
    by = f" --by {shlex.quote(gate.people[0])}" if len(gate.people) == 1 else " --by WHO" if gate.people else ""
    return (
        f"  holdfast approvals approve {gate.id}{where}{by}{filled}\n"
        f"  holdfast approvals deny {gate.id}{where}{by} --comment '…'"
    )


HOW = "cli"

By = Annotated[
    str | None,
    typer.Option("--by", metavar="WHO", help="Who says so; else the user of this system, or whose the token is."),
]
Comment = Annotated[str | None, typer.Option("--comment", metavar="TEXT", help="Why; it is kept with the decision.")]


@commands.add(
    "approve",
    "holdfast approvals approve ID --comment 'fine with me'",
    "holdfast approvals approve ID --by ada@example.com --field limit=500 --field 'reason=spring campaign'",
    "holdfast approvals approve ID --data @answer.json",
    "holdfast approvals approve - < token.txt",
)
def approve(
    session: AnyTenant,
    gate: options.GateOrToken,
    by: By = None,
    comment: Comment = None,
    data: Annotated[
        str | None, typer.Option("--data", metavar="JSON", help="What the form asks for: JSON, @file, or - for stdin.")
    ] = None,
    field: Annotated[
        list[str] | None,
        typer.Option("--field", metavar="NAME=VALUE", help="One field of the form; may be repeated."),
    ] = None,
) -> None:
    """Say yes to what a job asks; it goes on when enough people have."""
    if gate == "-" and data == "-":
        raise InvalidSetting("only one of token and data can come from stdin", code="conflicting_options")
    named, whole = pairs(field or []), None if data is None else document(data)
    reference = secret_of(gate)
    with session.connect() as client:
        approvals = Approvals(client)
        if named:
            whole = merged({} if whole is None else whole, _typed(approvals.get(reference).gate, named))
        person = _person(reference, by)
        try:
            found = approvals._decide("approve", reference, person, how=HOW, comment=comment, data=whole)
        except InvalidInput as error:
            if error.code == "form_invalid":
                error.fix = f"What it asks for: holdfast approvals show {gate_of(reference)}"
            raise
    _print(found, session.as_json)


@commands.add(
    "deny",
    "holdfast approvals deny ID --comment 'too much'",
    "pass show approvals/token | holdfast approvals deny -",
)
def deny(session: AnyTenant, gate: options.GateOrToken, by: By = None, comment: Comment = None) -> None:
    """Say no to what a job asks; one no decides."""
    reference = secret_of(gate)
    with session.connect() as client:
        found = Approvals(client)._decide("deny", reference, _person(reference, by), how=HOW, comment=comment)
    _print(found, session.as_json)


@commands.add(
    "token",
    "holdfast approvals token ID --for ada@example.com --expires-in 2d",
    "holdfast approvals token ID > token.txt",
)
def token(
    session: AnyTenant,
    gate: options.GateId,
    person: Annotated[
        str | None,
        typer.Option("--for", metavar="WHO", help="Whose word it is; else whoever uses it says who they are."),
    ] = None,
    expires_in: Annotated[
        str | None, typer.Option("--expires-in", metavar="SPAN", help="How long it may be used: 90s, 5m, 2d.")
    ] = None,
) -> None:
    """Issue a token that decides a gate once, and print it."""
    ttl = None if expires_in is None else duration(expires_in, "expires-in")
    with session.connect() as client:
        issued = Approvals(client).issue_token(gate, person=person, expires_in=ttl)
    if session.as_json:
        emit({"gate_id": gate_of_token(issued), "token": issued, "person": person, "expires_in": ttl})
    else:
        write(issued)
    say("Keep it safe: whoever has it decides, and it is not shown again. Only a hash is stored.")


def _person(reference: str, by: str | None) -> str | None:
    """A token may know whose it is; with an id it is whoever sits here, unless they say otherwise."""
    return by if by is not None or gate_of_token(reference) is not None else config.operating_user()


def _typed(gate: Approval, named: dict[str, str]) -> dict[str, Any]:
    """What was written, as the form asks for it; JSON where it is JSON, for what no form speaks of."""
    known = {field.name: field for field in fields(gate.form)}
    return {name: known[name].read(text) if name in known else as_json(text) for name, text in named.items()}


def _print(gate: Approval, as_json: bool) -> None:
    if as_json:
        emit(gate)
    else:
        table(("id", "state", "answer"), [[gate.id, state_text(gate.state), answer(gate)]])


def answer(gate: Approval) -> str:
    if gate.state == "open":
        return f"{gate.approvals} of {gate.quorum} approvals: {gate.missing} more needed"
    goes_on = gate.state == "approved" or gate.on_deny == "resume"
    return f"job {gate.job_id} {'goes on' if goes_on else 'has failed'}"
