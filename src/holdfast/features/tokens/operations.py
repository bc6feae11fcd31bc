"""``app.tokens``: API tokens of the HTTP service.

A token is shown once, when it is issued; the database keeps its hash. Issuing and revoking are recorded as actions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Annotated

from holdfast.engine.declared import Before, Help, Most, http
from holdfast.engine.job import EVERY_TENANT
from holdfast.engine.names import page_size
from holdfast.engine.operation import Program, awaited, operation
from holdfast.engine.units import Duration
from holdfast.errors import NotFound
from holdfast.features.tokens.model import ApiToken, Issuing, Role, Scope, new_token, token_tenant
from holdfast.stores.flow import run
from holdfast.stores.namespace import StoreNamespace
from holdfast.stores.port import Caller
from holdfast.stores.requests import new_id

_Tokens = list[ApiToken]  # inside the class, ``list`` is an operation

OfTenant = Annotated[str | None, Help("The tenant, if it is another than the session's.", http=False, cli=False)]


@dataclass(frozen=True, slots=True)
class IssuedToken:
    """A newly issued token. ``text`` is the token itself, which is not shown again."""

    text: str = field(repr=False)
    token: ApiToken


class Tokens(StoreNamespace):
    """API tokens of the HTTP service."""

    def __init__(self, caller: Caller, new_id: Callable[[], str] = new_id) -> None:
        super().__init__(caller)
        self._new_id = new_id

    @operation
    @http("POST /tokens", "admin", status=201, example={"name": "ci", "roles": ["producer"]})
    def issue(
        self,
        name: Annotated[str, Help("Name recorded in the ledger: a person or a program.", "NAME", longest=100)],
        *,
        roles: Annotated[
            Sequence[str],
            Help(f"Role: {', '.join(Role)}; repeatable.", "ROLE", most=len(Role), option="--role", wire=list[Role]),
        ],
        scopes: Annotated[
            Sequence[str],
            Help(
                f"Restrict it to a scope: {', '.join(Scope)}; repeatable.",
                "SCOPE",
                most=len(Scope),
                option="--scope",
                wire=list[Scope],
            ),
        ] = (),
        expires: Annotated[datetime | Duration | None, Help("Expiry: a time, or 90d; default: never.")] = None,
        tenant: OfTenant = None,
        every_tenant: Annotated[bool, Help("For operators of the service.", http=False, cli=False)] = False,
    ) -> Program[IssuedToken]:
        """Issue an API token, with at most the caller's own rights. It is shown once; only a hash is stored.

        ``app.tokens.issue("ci", roles=["producer"], expires="90d").text``. ``name`` appears in the ledger as the actor;
        ``scopes`` allow less than the roles. With ``every_tenant`` it is for operators of the service: each request
        names a tenant, and may read all.
        """
        text = new_token()
        new = Issuing.of(self._new_id(), text, name, roles, scopes, expires)
        tenant = EVERY_TENANT if every_tenant else token_tenant(tenant or self._tenant)
        return IssuedToken(text, (yield from run(self._store.tokens.issue(new, self._actor, tenant))))

    aissue = awaited(issue)

    @operation
    @http("GET /tokens", "admin", page="id")
    def list(
        self,
        *,
        sessions: Annotated[
            bool, Help("Include browser sessions opened with the tokens.", option="--sessions")
        ] = False,
        before: Before = None,
        limit: Most = 50,
        tenant: OfTenant = None,
    ) -> Program[_Tokens]:
        """List tokens, newest first, including expired and revoked ones."""
        return (yield from run(self._store.tokens.list(tenant or self._tenant, sessions, before, page_size(limit))))

    alist = awaited(list)

    @operation
    @http("DELETE /tokens/{token_id}", "admin", name="revoke_token")
    def revoke(
        self, token_id: Annotated[str, Help("The token's full id.", "ID", longest=36)], *, tenant: OfTenant = None
    ) -> Program[ApiToken]:
        """Revoke a token and the sessions opened with it. A server may accept it for two more seconds, from its
        cache."""
        token = yield from run(self._store.tokens.revoke(token_id, self._actor, tenant or self._tenant))
        if token is None:
            raise NotFound(
                "no such token in this tenant",
                code="token_not_found",
                fix="List the tokens: holdfast tokens list",
            )
        return token

    arevoke = awaited(revoke)
