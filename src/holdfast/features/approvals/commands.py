"""``holdfast approvals list | show | approve | deny | token``."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any

import typer

from holdfast import config
from holdfast.cli.derived import derive
from holdfast.cli.options import document, merged, parse_pairs, secret_of
from holdfast.cli.output import (
    Cell,
    age,
    emit,
    heading,
    line,
    moment,
    print_document,
    print_fields,
    say,
    span,
    state_text,
    table,
    write,
)
from holdfast.cli.session import AnyTenant, scope
from holdfast.cli.tree import Commands
from holdfast.engine.declared import Help
from holdfast.engine.ids import id_range
from holdfast.engine.json_schema import Field, as_json, fields, plainly
from holdfast.errors import InvalidInput, InvalidSetting, NotFound
from holdfast.features.approvals.model import Approval, ApprovalFilter, Vote, approval_of_token, proposed
from holdfast.features.approvals.operations import ApprovalRequest, Approvals, approval_of
from holdfast.stores.session import Session

commands = Commands("List and decide approvals.")

MAX_PAGE = 1000
TYPES = {
    "string": "text",
    "integer": "whole number",
    "boolean": "yes or no",
    "array": "list",
    "null": "nothing",
}
EXPIRED = "over"
ON_EXPIRE = {"deny": "then it is denied", "approve": "then it is approved", "remind": "then people are reminded"}


@derive(
    commands,
    "list",
    AnyTenant,
    Approvals.list,
    "holdfast approvals list --approver ada@example.com",
    "holdfast approvals list --name big-payment --state all --json",
)
def list_approvals(session: AnyTenant, inputs: dict[str, Any]) -> None:
    limit, only_open = inputs["limit"], inputs["state"] == "open"
    with session.connect() as client:
        now = client.run(client.store.clock.now())
        # One more than requested, to know whether there is another page.
        page = Approvals(client).list(**inputs | {"limit": min(limit + 1, MAX_PAGE)})
    approvals, more = page[:limit], len(page) > limit or len(page) == MAX_PAGE
    session.print_list(
        approvals,
        {
            "id": lambda approval: approval.id,
            **session.tenants,
            "name": lambda approval: line(approval.name),
            **({} if only_open else {"state": lambda approval: state_text(approval.state)}),
            "age": lambda approval: age(approval.opened_at, now),
            "left": lambda approval: _left(approval, now),
            "approvals": lambda approval: f"{approval.approvals}/{approval.quorum}",
            "approvers": lambda approval: line(who_may(approval)),
            "summary": lambda approval: line(approval.summary),
        },
        none="No open approvals." if only_open else "No matching approvals.",
        keep=("id", "state", "age", "left", "approvals"),
    )
    if more:
        say(f"There are more: --after {approvals[-1].id}")


def _left(approval: Approval, now: datetime) -> str:
    if approval.expires_at is None or approval.state != "open":
        return ""
    left = (approval.expires_at - now).total_seconds()
    return span(left) if left > 0 else EXPIRED


def who_may(approval: Approval) -> str:
    people = approval.people or ("anyone",)
    may_not = approval.not_requester and (not approval.people or approval.requester in approval.people)
    return ", ".join(people) + (f", but not {approval.requester}" if may_not else "")


@derive(commands, "show", AnyTenant, Approvals.get, "holdfast approvals show 01a1de74-eb8c-70f1-843b-cac5f6817387")
def show(session: AnyTenant, inputs: dict[str, Any]) -> None:
    """Show an approval: the request, who may decide, the votes so far, and how to decide it."""
    with session.connect() as client:
        now = client.run(client.store.clock.now())
        try:
            request = Approvals(client).get(_full_id(client, inputs["approval"]))
        except NotFound as error:
            fix = "Is it a job's? Try: holdfast approvals list --job ID. Is it another tenant's? Try --all-tenants."
            raise NotFound(error.message, fix=fix) from None
    if session.as_json:
        emit(request)
        return
    _print_facts(request, now)
    if request.approval.data is not None:
        print_document("Data", request.approval.data)
    form_fields = fields(request.approval.form) if request.approval.form is not None else []
    if form_fields:
        heading("Form")
        _print_form(form_fields, _filled_in(request, form_fields))
    elif request.approval.form is not None:
        print_document("Form", request.approval.form)
    if request.votes:
        heading("Votes")
        _print_votes(request.votes)
    if request.approval.state == "open":
        last = proposed(request.approval, request.votes)
        if last is not None and request.approval.quorum > 1:
            say(f"\nThe form has the values of {last.person}. Approve the same values to confirm them.")
            say("Other values start a new count.")
        values = {} if last is None else _filled_in(request, form_fields)
        say(f"\nTo decide it:\n{decision_commands(request.approval, form_fields, values)}")


def _print_facts(request: ApprovalRequest, now: datetime) -> None:
    approval, job = request.approval, request.job
    write(f"{approval.name}  {approval.id}")
    print_fields(
        [
            ("summary", approval.summary),
            ("state", state_text(approval.state)),
            ("requested", f"{moment(approval.opened_at)}, {age(approval.opened_at, now)} ago"),
            ("decided", None if approval.decided_at is None else moment(approval.decided_at)),
            ("approvers", who_may(approval) + (", with a token" if approval.token_only else "")),
            ("approvals", f"{approval.approvals} of {approval.quorum}"),
            ("expires", _expiry(approval, now)),
            ("reminders", _reminders(approval)),
            ("escalation", _escalation(approval)),
            ("if denied", "the job continues and handles it" if approval.on_deny == "resume" else "the job fails"),
            ("tenant", approval.tenant),
            ("job", f"{job.kind}  {job.id}  {job.state}, enqueued by {job.enqueued_by}"),
        ]
    )


def _expiry(approval: Approval, now: datetime) -> str | None:
    if approval.expires_at is None or approval.state != "open":
        return None
    left = _left(approval, now)
    when = f"{moment(approval.expires_at)}, {left if left == EXPIRED else f'in {left}'}"
    return f"{when}; {ON_EXPIRE.get(approval.on_expire, approval.on_expire)}"


def _reminders(approval: Approval) -> str | None:
    upcoming = f", the next {moment(approval.remind_at)}" if approval.remind_at and approval.state == "open" else ""
    return f"{approval.reminders} so far{upcoming}" if approval.reminders or upcoming else None


def _escalation(approval: Approval) -> str | None:
    if not approval.escalate_to:
        return None
    people = ", ".join(approval.escalate_to)
    if approval.escalated_at is not None:
        return f"{moment(approval.escalated_at)} to {people}"
    return (
        f"not yet; {moment(approval.escalate_at)} to {people}"
        if approval.escalate_at and approval.state == "open"
        else None
    )


def _filled_in(request: ApprovalRequest, form_fields: Sequence[Field]) -> dict[str, Any]:
    """The values that the form is filled in with: those of the last approval, or the defaults."""
    last = proposed(request.approval, request.votes)
    if last is not None and isinstance(last.data, dict):
        return dict(last.data)
    return {field.name: field.default for field in form_fields if field.default is not None}


def _print_form(form_fields: Sequence[Field], values: Mapping[str, Any]) -> None:
    rows: list[list[Cell]] = [
        [
            line(field.name),
            line(" or ".join(TYPES.get(kind, kind) for kind in field.types) or "anything"),
            "yes" if field.required else "no",
            line(plainly(values[field.name]) if field.name in values else ""),
            line(", ".join(map(plainly, field.choices)) or ", ".join(field.bounds)),
            line(field.about or ""),
        ]
        for field in form_fields
    ]
    table(("field", "type", "required", "value", "allowed", "about"), rows, keep=("required", "value"))


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


def decision_commands(approval: Approval, form_fields: Sequence[Field], values: Mapping[str, Any]) -> str:
    """The commands that decide an approval, ready to be filled in; with ``values``, to confirm those."""
    if approval.token_only:
        return (
            "  Only a token decides it: use the link or token that was sent to you.\n"
            f"  holdfast approvals token {approval.id} --for WHO\n"
            "  holdfast approvals approve - < token.txt"
        )
    tenant = "" if scope(None) == approval.tenant else f" --tenant {shlex.quote(approval.tenant)}"
    named = {field.name: "…" for field in form_fields if field.required and field.name not in values}
    named |= {name: plainly(value) for name, value in values.items()}
    data = "".join(f" --field {shlex.quote(f'{name}={value}')}" for name, value in named.items())
    if approval.form is not None and not form_fields:
        data = " --data '{…}'"
    by = ""
    if approval.people:
        by = f" --by {shlex.quote(approval.people[0]) if len(approval.people) == 1 else 'WHO'}"
    return (
        f"  holdfast approvals approve {approval.id}{tenant}{by}{data}\n"
        f"  holdfast approvals deny {approval.id}{tenant}{by} --comment '…'"
    )


HOW = "cli"


@derive(
    commands,
    "approve",
    AnyTenant,
    Approvals.approve,
    "holdfast approvals approve ID --comment 'fine with me'",
    "holdfast approvals approve ID --by ada@example.com --field limit=500 --field 'reason=spring campaign'",
    "holdfast approvals approve ID --data @answer.json",
    "holdfast approvals approve - < token.txt",
)
def approve(
    session: AnyTenant,
    inputs: dict[str, Any],
    data: Annotated[str | None, Help("The form's values: JSON, @file, or - for stdin.", "JSON")] = None,
    field: Annotated[list[str] | None, Help("One field of the form; repeatable.", "NAME=VALUE")] = None,
) -> None:
    if inputs["approval"] == "-" and data == "-":
        raise InvalidSetting("only one of token and data can come from stdin", code="conflicting_options")
    named, values = parse_pairs(field or []), None if data is None else document(data)
    with session.connect() as client:
        approvals, reference = Approvals(client), _full_id(client, secret_of(inputs["approval"]))
        if named:
            values = merged({} if values is None else values, _typed(approvals.get(reference).approval, named))
        person = _person(reference, inputs.get("by"))
        try:
            decided = approvals._decide(
                "approve", reference, person, how=HOW, comment=inputs.get("comment"), data=values
            )
        except InvalidInput as error:
            if error.code == "form_invalid":
                error.fix = f"Show the form: holdfast approvals show {approval_of(reference)}"
            raise
    _print(decided, session.as_json)


@derive(
    commands,
    "deny",
    AnyTenant,
    Approvals.deny,
    "holdfast approvals deny ID --comment 'too much'",
    "pass show approvals/token | holdfast approvals deny -",
)
def deny(session: AnyTenant, inputs: dict[str, Any]) -> None:
    with session.connect() as client:
        reference = _full_id(client, secret_of(inputs["approval"]))
        person = _person(reference, inputs.get("by"))
        decided = Approvals(client)._decide("deny", reference, person, how=HOW, comment=inputs.get("comment"))
    _print(decided, session.as_json)


@derive(
    commands,
    "token",
    AnyTenant,
    Approvals.issue_token,
    "holdfast approvals token ID --for ada@example.com --expires-in 2d",
    "holdfast approvals token ID --for ada@example.com --service https://jobs.example.com",
    "holdfast approvals token ID > token.txt",
)
def token(
    session: AnyTenant,
    inputs: dict[str, Any],
    service: Annotated[
        str | None,
        typer.Option(
            "--service",
            metavar="URL",
            envvar=config.SERVICE_URL_VARIABLE,
            help="Where the service is: prints a link to send (or HOLDFAST_API_URL).",
        ),
    ] = None,
) -> None:
    """Issue a token that decides an approval once, and print it, or with --service the link."""
    with session.connect() as client:
        issued = Approvals(client).issue_token(_full_id(client, inputs.pop("approval")), **inputs)
    if session.as_json:
        link = {} if service is None else {"link": _link(service, issued)}
        options = {"person": inputs.get("person"), "expires_in": inputs.get("expires_in")}
        emit({"approval_id": approval_of_token(issued), "token": issued, **options, **link})
    else:
        write(issued if service is None else _link(service, issued))
    say("Keep it safe: anyone who has it can decide, and it is not shown again. Only a hash is stored.")


def _full_id(client: Session, text: str) -> str:
    """The id of the approval whose id begins with ``text``. Other text is returned as it is: a token, or a full id."""
    bounds = id_range(text)
    if bounds is None:
        return text
    low, high = bounds
    wanted = ApprovalFilter(tenant=client.tenant, state=None, after=low, limit=5)
    ids = [approval.id for approval in client.run(client.store.approvals.list(wanted)) if approval.id <= high]
    if len(ids) > 1:
        raise InvalidInput(
            f"several approval ids begin with {text}: {', '.join(ids)}", code="invalid_id", fix="Give more of the id."
        )
    if not ids:
        raise NotFound(f"no approval id begins with {text}")
    return ids[0]


def _link(service: str, token: str) -> str:
    """The page of the service on which the token decides."""
    return f"{service.rstrip('/')}/decide/{token}"


def _person(reference: str, by: str | None) -> str | None:
    """The person who decides: ``--by``, the person of the token (None here), or the user of this terminal."""
    return by if by is not None or approval_of_token(reference) is not None else config.operating_user()


def _typed(approval: Approval, named: dict[str, str]) -> dict[str, Any]:
    """The values of ``--field`` in the types of the form; names that the form does not have are parsed as JSON if
    possible."""
    known = {field.name: field for field in fields(approval.form)}
    return {name: known[name].read(text) if name in known else as_json(text) for name, text in named.items()}


def _print(approval: Approval, as_json: bool) -> None:
    if as_json:
        emit(approval)
    else:
        table(("id", "state", "answer"), [[approval.id, state_text(approval.state), answer(approval)]])


def answer(approval: Approval) -> str:
    if approval.state == "open":
        return f"{approval.approvals} of {approval.quorum} approvals: {approval.missing} more needed"
    continues = approval.state == "approved" or approval.on_deny == "resume"
    return f"job {approval.job_id} {'continues' if continues else 'has failed'}"
