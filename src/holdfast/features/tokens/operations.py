"""``app.tokens``: API tokens of the HTTP service.

A token is shown once, when it is issued; the database keeps its hash. Issuing and revoking are recorded as actions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime

from holdfast.engine.job import EVERY_TENANT
from holdfast.engine.names import page_size
from holdfast.engine.operation import Program, awaited, operation
from holdfast.engine.units import Duration
from holdfast.errors import NotFound
from holdfast.features.tokens.model import ApiToken, Issuing, new_token, token_tenant
from holdfast.stores.flow import run
from holdfast.stores.namespace import StoreNamespace
from holdfast.stores.port import Caller

_Tokens = list[ApiToken]  # inside the class, ``list`` is an operation


@dataclass(frozen=True, slots=True)
class Issued:
    """A newly issued token. ``text`` is the token itself, which is not shown again."""

    text: str
    token: ApiToken

    def __repr__(self) -> str:
        return f"Issued({self.token.prefix}…, {self.token!r})"


class Tokens(StoreNamespace):
    """API tokens of the HTTP service."""

    def __init__(self, caller: Caller, new_id: Callable[[], str]) -> None:
        super().__init__(caller)
        self._new_id = new_id

    @operation
    def issue(
        self,
        name: str,
        *,
        roles: Sequence[str],
        scopes: Sequence[str] = (),
        expires: datetime | Duration | None = None,
        tenant: str | None = None,
        every_tenant: bool = False,
    ) -> Program[Issued]:
        """Issue a token: ``app.tokens.issue("ci", roles=["producer"], expires="90d").text``. ``name`` appears in the
        ledger as the actor; ``scopes`` allow less than the roles. With ``every_tenant`` it is for operators of the
        service: each request names a tenant, and may read all."""
        text = new_token()
        new = Issuing.of(self._new_id(), text, name, roles, scopes, expires)
        tenant = EVERY_TENANT if every_tenant else token_tenant(tenant or self._tenant)
        return Issued(text, (yield from run(self._store.tokens.issue(new, self._actor, tenant))))

    aissue = awaited(issue)

    @operation
    def list(
        self, *, sessions: bool = False, before: str | None = None, limit: int = 50, tenant: str | None = None
    ) -> Program[_Tokens]:
        """Tokens, newest first, also expired and revoked ones; with ``sessions`` the browser sessions too."""
        return (yield from run(self._store.tokens.list(tenant or self._tenant, sessions, before, page_size(limit))))

    alist = awaited(list)

    @operation
    def revoke(self, token_id: str, *, tenant: str | None = None) -> Program[ApiToken]:
        """Revoke a token and its sessions. A server may accept it for two more seconds, from its cache."""
        token = yield from run(self._store.tokens.revoke(token_id, self._actor, tenant or self._tenant))
        if token is None:
            raise NotFound(
                "no such token in this tenant",
                code="token_not_found",
                fix="List the tokens: holdfast tokens list",
            )
        return token

    arevoke = awaited(revoke)
