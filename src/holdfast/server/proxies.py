"""The identity of a user whom a reverse proxy has authenticated, and the roles of groups."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from holdfast.engine.names import check_name
from holdfast.errors import InvalidSetting, Refused
from holdfast.features.tokens.model import scopes_of, token_tenant
from holdfast.server.auth import Identity, presents_token

if TYPE_CHECKING:
    from holdfast.server.sessions import Tokens


@dataclass(frozen=True, slots=True)
class Roles:
    """The roles of groups, and the tenant that they are for."""

    groups: Mapping[str, tuple[str, ...]]

    @classmethod
    def of(cls, text: str) -> Roles:
        """``ops=operator+approver,admins=admin``; the group ``*`` is everybody."""
        groups: dict[str, tuple[str, ...]] = {}
        for part in filter(None, (each.strip() for each in text.split(","))):
            group, _, roles = part.rpartition("=")
            if not group.strip():
                raise _bad_roles("roles are written as group=role+role,group=role")
            groups[group.strip()] = tuple(each.strip() for each in roles.split("+"))
            scopes_of(groups[group.strip()])
        if not groups:
            raise _bad_roles("single sign-on needs the roles of at least one group")
        return cls(groups)

    def for_groups(self, groups: Iterable[str]) -> tuple[str, ...]:
        found = (role for group in (*groups, "*") for role in self.groups.get(group, ()))
        return tuple(dict.fromkeys(found))


PEER: Final = "holdfast_peer"


class PeerAddress:
    """Keeps the address of the connection, before headers of a trusted proxy replace it with that of the client."""

    def __init__(self, inner: ASGIApp) -> None:
        self._inner = inner

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            scope[PEER] = (scope.get("client") or ("",))[0]
        await self._inner(scope, receive, send)


class ProxyIdentity:
    """An ``Authenticate`` for a reverse proxy that has authenticated the user and says so in headers. Only connections
    from the addresses of ``trusted`` are believed; API tokens work besides."""

    def __init__(
        self, tokens: Tokens, trusted: Sequence[str], user: str, groups: str | None, roles: Roles, tenant: str
    ) -> None:
        if not trusted:
            raise InvalidSetting(
                "headers are believed only from a proxy whose address is named",
                code="proxy_required",
                fix="Name it: --trust-proxy 10.0.0.5.",
            )
        self._tokens, self._roles, self._tenant = tokens, roles, token_tenant(tenant)
        self._networks = [ipaddress.ip_network(address, strict=False) for address in trusted]
        self._user, self._groups = user.lower(), None if groups is None else groups.lower()

    async def __call__(self, request: Request) -> Identity | None:
        if presents_token(request):
            return await self._tokens(request)
        names = request.headers.getlist(self._user)
        if len(names) != 1 or not names[0].strip() or not self._is_proxy(request):
            return None
        groups = "" if self._groups is None else _text(",".join(request.headers.getlist(self._groups)))
        roles = self._roles.for_groups(each.strip() for each in groups.split(","))
        name = check_name(_text(names[0]).strip(), "name")
        if not roles:
            raise Refused(f"{name} is in no group that has a role here", code="no_role")
        return Identity(name, self._tenant, scopes_of(roles), ambient=True)

    def _is_proxy(self, request: Request) -> bool:
        try:
            address = ipaddress.ip_address(request.scope.get(PEER, ""))
        except ValueError:
            return False
        return any(address in network for network in self._networks)


def _text(header: str) -> str:
    """A header as UTF-8, which proxies send; frameworks read headers as Latin-1."""
    try:
        return header.encode("latin-1").decode()
    except UnicodeError:
        return header


def _bad_roles(why: str) -> InvalidSetting:
    return InvalidSetting(why, code="invalid_sign_on")
