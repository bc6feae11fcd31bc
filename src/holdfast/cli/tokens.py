"""``holdfast tokens``: who may ask over HTTP, and for what."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

import typer

from holdfast.cli import options
from holdfast.cli.output import Cell, emit, facts, line, say, table, write
from holdfast.cli.session import connect, scope
from holdfast.cli.words import duration, instant, moment
from holdfast.client import new_id
from holdfast.domain.errors import InvalidSetting
from holdfast.domain.job import EVERY_TENANT
from holdfast.domain.roles import Role, Scope
from holdfast.domain.tokens import ApiToken
from holdfast.features.tokens import Tokens

EveryTenant = Annotated[
    bool, typer.Option("--all-tenants", help="For those who run the whole: every tenant's, where the role may.")
]


def issue(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Whom the ledger names: a person, or a program.")],
    role: Annotated[
        list[Role], typer.Option("--role", metavar="ROLE", help=f"What it may: {', '.join(Role)}. Repeat it.")
    ],
    only: Annotated[
        list[Scope] | None,
        typer.Option("--scope", metavar="SCOPE", help=f"No more than this of it: {', '.join(Scope)}. Repeat it."),
    ] = None,
    expires: Annotated[
        str | None, typer.Option("--expires", metavar="TIME|SPAN", help="When it ends: a time, or 90d. Else never.")
    ] = None,
    url: options.Url = None,
    tenant: options.Tenant = None,
    all_tenants: EveryTenant = False,
    schema: options.Schema = options.SCHEMA,
    as_json: options.Json = False,
) -> None:
    """Issue an API token. It is shown here, once; what is kept is a hash."""
    whose = scope(tenant, all_tenants)
    with connect(url, whose, schema) as client:
        issued = Tokens(client, new_id).issue(
            name,
            roles=role,
            scopes=only or (),
            expires=None if expires is None else _when(expires),
            every_tenant=whose == EVERY_TENANT,
        )
    if as_json:
        emit({"text": issued.text, "token": issued.token})
        return
    write(issued.text)
    say(f"It is not shown again. It may {', '.join(sorted(issued.token.allows))} {_whose(issued.token)}.")


def list_tokens(
    sessions: Annotated[bool, typer.Option("--sessions", help="Browsers that were logged in with them, too.")] = False,
    url: options.Url = None,
    tenant: options.Tenant = None,
    all_tenants: options.AllTenants = False,
    limit: options.Limit = 50,
    schema: options.Schema = options.SCHEMA,
    as_json: options.Json = False,
) -> None:
    """List tokens, newest first; those that are over are among them."""
    with connect(url, scope(tenant, all_tenants), schema) as client:
        found = Tokens(client, new_id).list(sessions=sessions, limit=limit)
    if as_json:
        emit(found)
    elif not found:
        say("No token has been issued.")
    else:
        now = datetime.now(UTC)
        headers = ["id", "begins with", "name", "tenant", "roles", "last used", "state"]
        table(headers, [_row(each, now) for each in found], keep=("id", "begins with"))


def revoke(
    id: Annotated[str, typer.Argument(metavar="ID", help="A token's id, in full.")],
    url: options.Url = None,
    tenant: options.Tenant = None,
    all_tenants: options.AllTenants = False,
    schema: options.Schema = options.SCHEMA,
    as_json: options.Json = False,
) -> None:
    """Revoke a token, and the sessions that were opened with it."""
    with connect(url, scope(tenant, all_tenants), schema) as client:
        found = Tokens(client, new_id).revoke(id)
    if as_json:
        emit(found)
        return
    write(f"{found.prefix}… is revoked")
    facts([("name", found.name), ("since", f"{moment(found.revoked_at or found.created_at)} by {found.revoked_by}")])


def _row(token: ApiToken, now: datetime) -> list[Cell]:
    roles = "session" if token.is_session else ", ".join(token.roles)
    narrowed = f" ({', '.join(token.scopes)})" if token.scopes else ""
    used = "never" if token.last_used_at is None else moment(token.last_used_at)
    return [
        *(token.id, f"{line(token.prefix)}…", line(token.name), line(token.tenant), roles + narrowed),
        *(used, _state(token, now)),
    ]


def _state(token: ApiToken, now: datetime) -> str:
    if token.revoked_at is not None:
        return f"revoked by {line(token.revoked_by)}"
    if token.expires_at is None:
        return "good"
    return f"over since {moment(token.expires_at)}" if token.expires_at <= now else f"until {moment(token.expires_at)}"


def _whose(token: ApiToken) -> str:
    return "for every tenant" if token.tenant == EVERY_TENANT else f"for tenant {token.tenant}"


def _when(text: str) -> float | datetime:
    try:
        return duration(text, "--expires")
    except InvalidSetting:
        return instant(text, "--expires")
