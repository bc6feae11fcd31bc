"""``holdfast tokens``: issue, list and revoke API tokens."""

from __future__ import annotations

from datetime import UTC, datetime

from holdfast.cli.derived import derive
from holdfast.cli.output import emit, line, moment, print_fields, say, write
from holdfast.cli.session import AnyTenant
from holdfast.cli.tree import Commands
from holdfast.engine.job import EVERY_TENANT
from holdfast.features.tokens.model import ApiToken
from holdfast.features.tokens.operations import IssuedToken, Tokens

commands = Commands("Manage API tokens.")


@derive(
    commands,
    "issue",
    AnyTenant,
    Tokens.issue,
    "holdfast tokens issue ci --role producer --expires 90d",
    "holdfast tokens issue ada --role operator --role approver --tenant acme",
    "holdfast tokens issue ops --role admin --all-tenants",
)
def issue(session: AnyTenant, result: IssuedToken) -> None:
    if session.as_json:
        emit(result)
        return
    write(result.text)
    tenant = "every tenant" if result.token.tenant == EVERY_TENANT else f"tenant {result.token.tenant}"
    say(f"It is not shown again. It allows {', '.join(sorted(result.token.allows))} for {tenant}.")


@derive(commands, "list", AnyTenant, Tokens.list, "holdfast tokens list --all-tenants")
def list_tokens(session: AnyTenant, result: list[ApiToken]) -> None:
    now = datetime.now(UTC)
    session.print_list(
        result,
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


@derive(commands, "revoke", AnyTenant, Tokens.revoke, "holdfast tokens revoke 01a1de74-eb8c-70f1-843b-cac5f6817387")
def revoke(session: AnyTenant, result: ApiToken) -> None:
    if session.as_json:
        emit(result)
        return
    write(f"{result.prefix}… is revoked")
    print_fields(
        [("name", result.name), ("since", f"{moment(result.revoked_at or result.created_at)} by {result.revoked_by}")]
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
