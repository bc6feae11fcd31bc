"""API tokens for those who ask over HTTP (rule 25): issue, list, revoke.

A token is shown once, by whoever issues it; what is kept is its hash. Issuing and revoking are recorded as actions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime

from holdfast.engine.job import EVERY_TENANT
from holdfast.engine.names import page_size
from holdfast.engine.units import Duration
from holdfast.errors import NotFound
from holdfast.features.tokens.model import ApiToken, Issuing, new_token, token_tenant
from holdfast.stores.flow import Flow
from holdfast.stores.port import Caller

_Tokens = list[ApiToken]  # where the word is a method


@dataclass(frozen=True, slots=True)
class Issued:
    """A token that was just issued: ``text`` is what its holder sends, and is not seen again."""

    text: str
    token: ApiToken

    def __repr__(self) -> str:
        return f"Issued({self.token.prefix}…, {self.token!r})"


class Tokens:
    """``app.tokens``. Each call has two colours: the one that begins with ``a`` is awaited."""

    def __init__(self, caller: Caller, new_id: Callable[[], str]) -> None:
        self._caller = caller
        self._new_id = new_id

    def issue(
        self,
        name: str,
        *,
        roles: Sequence[str],
        scopes: Sequence[str] = (),
        expires: datetime | Duration | None = None,
        tenant: str | None = None,
        every_tenant: bool = False,
    ) -> Issued:
        """A new token: ``app.tokens.issue("ci", roles=["producer"], expires="90d").text``. ``name`` is whom the ledger
        names; ``scopes`` allow less than the roles do. With ``every_tenant`` it is for those who run the whole: its
        holder says with each request for which tenant, and reads everybody's."""
        text, flow = self._issue(name, roles, scopes, expires, tenant, every_tenant)
        return Issued(text, self._caller.run(flow))

    async def aissue(
        self,
        name: str,
        *,
        roles: Sequence[str],
        scopes: Sequence[str] = (),
        expires: datetime | Duration | None = None,
        tenant: str | None = None,
        every_tenant: bool = False,
    ) -> Issued:
        text, flow = self._issue(name, roles, scopes, expires, tenant, every_tenant)
        return Issued(text, await self._caller.arun(flow))

    def list(
        self, *, sessions: bool = False, before: str | None = None, limit: int = 50, tenant: str | None = None
    ) -> _Tokens:
        """Newest first, also those that are over; with ``sessions`` the browsers that were logged in too."""
        return self._caller.run(self._list(sessions, before, page_size(limit), tenant))

    async def alist(
        self, *, sessions: bool = False, before: str | None = None, limit: int = 50, tenant: str | None = None
    ) -> _Tokens:
        return await self._caller.arun(self._list(sessions, before, page_size(limit), tenant))

    def revoke(self, token_id: str, *, tenant: str | None = None) -> ApiToken:
        """From now on it opens nothing, nor do its sessions. (A server may go by what it saw two seconds ago.)"""
        return _found(token_id, self._caller.run(self._revoke(token_id, tenant)))

    async def arevoke(self, token_id: str, *, tenant: str | None = None) -> ApiToken:
        return _found(token_id, await self._caller.arun(self._revoke(token_id, tenant)))

    # --- the flows ---

    def _issue(
        self,
        name: str,
        roles: Sequence[str],
        scopes: Sequence[str],
        expires: datetime | Duration | None,
        tenant: str | None,
        every_tenant: bool,
    ) -> tuple[str, Flow[ApiToken]]:
        text = new_token()
        new = Issuing.of(self._new_id(), text, name, roles, scopes, expires)
        whose = EVERY_TENANT if every_tenant else token_tenant(tenant or self._caller.tenant)
        return text, self._caller.store.tokens.issue(new, self._caller.actor, whose)

    def _list(self, sessions: bool, before: str | None, limit: int, tenant: str | None) -> Flow[_Tokens]:
        return self._caller.store.tokens.list(tenant or self._caller.tenant, sessions, before, limit)

    def _revoke(self, token_id: str, tenant: str | None) -> Flow[ApiToken | None]:
        return self._caller.store.tokens.revoke(token_id, self._caller.actor, tenant or self._caller.tenant)


def _found(token_id: str, token: ApiToken | None) -> ApiToken:
    if token is None:
        raise NotFound(
            "there is no such token in this tenant",
            code="token_not_found",
            fix="See which there are: holdfast tokens list",
        )
    return token
