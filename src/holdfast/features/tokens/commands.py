"""``holdfast tokens``: issue, list and revoke API tokens."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

import typer

from holdfast.cli import options
from holdfast.cli.output import emit, line, moment, print_fields, say, time_or_span, write
from holdfast.cli.session import AnyTenant
from holdfast.cli.tree import Commands
from holdfast.engine.job import EVERY_TENANT
from holdfast.features.tokens.model import ApiToken, Role, Scope
from holdfast.features.tokens.operations import Tokens
from holdfast.stores.ids import new_id

commands = Commands("Manage API tokens.")


@commands.add(
    "issue",
    "holdfast tokens issue ci --role producer --expires 90d",
    "holdfast tokens issue ada --role operator --role approver --tenant acme",
    "holdfast tokens issue ops --role admin --all-tenants",
)
def issue(
    session: AnyTenant,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name recorded in the ledger: a person or a program.")],
    role: Annotated[list[Role], typer.Option("--role", metavar="ROLE", help=f"Role: {', '.join(Role)}; repeatable.")],
    only: Annotated[
        list[Scope] | None,
        typer.Option("--scope", metavar="SCOPE", help=f"Restrict it to a scope: {', '.join(Scope)}; repeatable."),
    ] = None,
    expires: Annotated[
        str | None, typer.Option("--expires", metavar="TIME|SPAN", help="Expiry: a time, or 90d; default: never.")
    ] = None,
) -> None:
    """Issue an API token. It is printed once; only a hash is stored."""
    with session.connect() as client:
        issued = Tokens(client, new_id).issue(
            name,
            roles=role,
            scopes=only or (),
            expires=None if expires is None else time_or_span(expires, "--expires"),
            every_tenant=session.scope == EVERY_TENANT,
        )
    if session.as_json:
        emit({"text": issued.text, "token": issued.token})
        return
    write(issued.text)
    tenant = "every tenant" if issued.token.tenant == EVERY_TENANT else f"tenant {issued.token.tenant}"
    say(f"It is not shown again. It allows {', '.join(sorted(issued.token.allows))} for {tenant}.")


@commands.add("list", "holdfast tokens list --all-tenants")
def list_tokens(
    session: AnyTenant,
    sessions: Annotated[
        bool, typer.Option("--sessions", help="Include browser sessions opened with the tokens.")
    ] = False,
    limit: options.Limit = 50,
) -> None:
    """List tokens, newest first, including expired and revoked ones."""
    with session.connect() as client:
        tokens = Tokens(client, new_id).list(sessions=sessions, limit=limit)
    now = datetime.now(UTC)
    session.print_list(
        tokens,
        {
            "id": lambda token: token.id,
            "prefix": lambda token: f"{line(token.prefix)}…",
            "name": lambda token: line(token.name),
            "tenant": lambda token: line(token.tenant),
            "roles": _roles,
            "last used": lambda token: "never" if token.last_used_at is None else moment(token.last_used_at),
            "state": lambda token: _state(token, now),
        },
        none="No token has been issued.",
        keep=("id", "prefix"),
    )


@commands.add("revoke", "holdfast tokens revoke 01a1de74-eb8c-70f1-843b-cac5f6817387")
def revoke(session: AnyTenant, id: Annotated[str, typer.Argument(metavar="ID", help="The token's full id.")]) -> None:
    """Revoke a token and the sessions opened with it."""
    with session.connect() as client:
        token = Tokens(client, new_id).revoke(id)
    if session.as_json:
        emit(token)
        return
    write(f"{token.prefix}… is revoked")
    print_fields(
        [("name", token.name), ("since", f"{moment(token.revoked_at or token.created_at)} by {token.revoked_by}")]
    )


def _roles(token: ApiToken) -> str:
    roles = "session" if token.is_session else ", ".join(token.roles)
    return roles + (f" ({', '.join(token.scopes)})" if token.scopes else "")


def _state(token: ApiToken, now: datetime) -> str:
    if token.revoked_at is not None:
        return f"revoked by {line(token.revoked_by)}"
    if token.expires_at is None:
        return "active"
    return f"{'expired' if token.expires_at <= now else 'until'} {moment(token.expires_at)}"
