"""``holdfast approvals approve | deny | token``: what people say, and the tokens with which they say it."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from holdfast import config
from holdfast.cli import options
from holdfast.cli.approvals import commands
from holdfast.cli.output import emit, say, state_text, table, write
from holdfast.cli.reading import document, merged, pairs, secret_of
from holdfast.cli.session import AnyTenant
from holdfast.cli.words import duration
from holdfast.errors import InvalidInput, InvalidSetting
from holdfast.features.approvals.forms import as_json, fields
from holdfast.features.approvals.model import Gate, gate_of_token
from holdfast.features.approvals.operations import Approvals, gate_of

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
            whole = merged({} if whole is None else whole, _typed(approvals.show(reference).gate, named))
        person = _person(reference, by)
        try:
            found = approvals.decide("approve", reference, person, how=HOW, comment=comment, data=whole)
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
        found = Approvals(client).decide("deny", reference, _person(reference, by), how=HOW, comment=comment)
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
        issued = Approvals(client).token(gate, person=person, expires_in=ttl)
    if session.as_json:
        emit({"gate_id": gate_of_token(issued), "token": issued, "person": person, "expires_in": ttl})
    else:
        write(issued)
    say("Keep it safe: whoever has it decides, and it is not shown again. Only a hash is stored.")


def _person(reference: str, by: str | None) -> str | None:
    """A token may know whose it is; with an id it is whoever sits here, unless they say otherwise."""
    return by if by is not None or gate_of_token(reference) is not None else config.operating_user()


def _typed(gate: Gate, named: dict[str, str]) -> dict[str, Any]:
    """What was written, as the form asks for it; JSON where it is JSON, for what no form speaks of."""
    known = {field.name: field for field in fields(gate.form)}
    return {name: known[name].read(text) if name in known else as_json(text) for name, text in named.items()}


def _print(gate: Gate, as_json: bool) -> None:
    if as_json:
        emit(gate)
    else:
        table(("id", "state", "answer"), [[gate.id, state_text(gate.state), answer(gate)]])


def answer(gate: Gate) -> str:
    if gate.state == "open":
        return f"{gate.approvals} of {gate.quorum} approvals: {gate.missing} more needed"
    goes_on = gate.state == "approved" or gate.on_deny == "resume"
    return f"job {gate.job_id} {'goes on' if goes_on else 'has failed'}"
