"""API tokens: their format, and the roles and scopes they grant. Pure.

A token is ``hf_<43 characters><6 of checksum>``: 256 random bits, and a checksum by which a typing error or a secret
scanner's match is recognized without the database. Only the SHA-256 of a token is stored. A browser session is a token
with the prefix ``hfs_``, which ends with the token it was opened with.
"""

from __future__ import annotations

import hashlib
import secrets
import zlib
from base64 import urlsafe_b64encode
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Final

from holdfast.engine.job import EVERY_TENANT
from holdfast.engine.names import check_name
from holdfast.engine.times import instant
from holdfast.engine.units import Duration, seconds
from holdfast.errors import InvalidSetting


class Scope(StrEnum):
    """A right. Every route and every action of a page requires exactly one."""

    READ = "read"
    ENQUEUE = "enqueue"
    OPERATE = "operate"
    """Change existing jobs, queues and schedules: cancel, move, redrive, discard, pause, edit."""
    DECIDE = "decide"
    WORK = "work"
    """Claim, heartbeat, checkpoint and settle; and tick, which runs jobs in the service."""
    ADMIN = "admin"
    """Tenants, executors, rules, retention, limits, tokens, connectors, webhooks."""


class Role(StrEnum):
    VIEWER = "viewer"
    PRODUCER = "producer"
    OPERATOR = "operator"
    APPROVER = "approver"
    EXECUTOR = "executor"
    ADMIN = "admin"


EVERY_SCOPE: Final = frozenset(Scope)

ROLES: Final[Mapping[Role, frozenset[Scope]]] = {
    Role.VIEWER: frozenset({Scope.READ}),
    Role.PRODUCER: frozenset({Scope.READ, Scope.ENQUEUE}),
    Role.OPERATOR: frozenset({Scope.READ, Scope.ENQUEUE, Scope.OPERATE}),
    Role.APPROVER: frozenset({Scope.READ, Scope.DECIDE}),
    Role.EXECUTOR: frozenset({Scope.WORK}),
    Role.ADMIN: EVERY_SCOPE,
}


def scopes_of(roles: Iterable[str], only: Iterable[str] = ()) -> frozenset[Scope]:
    """All scopes of these roles; with ``only``, restricted to those scopes."""
    lists: tuple[object, ...] = (roles, only)
    for given in lists:
        if not isinstance(given, Iterable):
            raise InvalidSetting(
                f"roles and scopes must be lists of names, not {type(given).__name__}", code="unknown_role"
            )
    try:
        allowed = frozenset[Scope]().union(*(ROLES[Role(role)] for role in roles))
        narrowed = frozenset(Scope(scope) for scope in only)
    except ValueError as error:
        raise InvalidSetting(
            f"unknown role or scope: {error}",
            code="unknown_role",
            fix=f"Roles: {', '.join(Role)}. Scopes: {', '.join(Scope)}.",
        ) from None
    return allowed & narrowed if narrowed else allowed


PREFIX: Final = "hf_"
SESSION_PREFIX: Final = "hfs_"
SECRET: Final = 43
CHECKSUM: Final = 6
SHOWN: Final = 8
MAX_LIFETIME: Final = 20 * 365 * 86_400.0
MIN_LIFETIME: Final = 1.0


@dataclass(frozen=True, slots=True)
class ApiToken:
    """The stored data of a token. ``prefix`` is its beginning, to recognize it by. ``scopes`` is empty if its roles are
    not restricted. ``parent_id`` is the token that a session was opened with."""

    id: str
    tenant: str
    name: str
    roles: tuple[str, ...]
    scopes: tuple[str, ...]
    prefix: str
    parent_id: str | None
    created_at: datetime
    created_by: str
    expires_at: datetime | None
    last_used_at: datetime | None
    revoked_at: datetime | None
    revoked_by: str | None

    @property
    def allows(self) -> frozenset[Scope]:
        return scopes_of(self.roles, self.scopes)

    @property
    def is_session(self) -> bool:
        return self.parent_id is not None


@dataclass(frozen=True, slots=True)
class Issuing:
    """A new token, validated. ``lasting`` is a duration in seconds by the store's clock, instead of ``expires_at``."""

    id: str
    name: str
    roles: tuple[str, ...]
    scopes: tuple[str, ...]
    hash: str
    prefix: str
    expires_at: datetime | None = None
    lasting: float | None = None

    @classmethod
    def of(
        cls,
        id: str,
        text: str,
        name: str,
        roles: Sequence[str],
        scopes: Sequence[str] = (),
        expires: datetime | Duration | None = None,
    ) -> Issuing:
        if isinstance(roles, str) or isinstance(scopes, str):
            raise InvalidSetting("roles and scopes must be lists of names", code="unknown_role")
        allowed = scopes_of(roles, scopes)
        if not allowed:
            raise InvalidSetting(
                "token has no permissions",
                code="token_without_scope",
                fix=f"Pass a role ({', '.join(Role)}) and only scopes that the role has.",
            )
        at, lasting = _until(expires)
        return cls(
            id,
            check_name(name, "name of the token"),
            tuple(dict.fromkeys(str(Role(role)) for role in roles)),
            tuple(dict.fromkeys(str(Scope(scope)) for scope in scopes)),
            hash_of(text),
            shown_of(text),
            at,
            lasting,
        )


def token_tenant(tenant: str) -> str:
    """The tenant of a token: a name, or ``*``."""
    return tenant if tenant == EVERY_TENANT else check_name(tenant, "tenant")


def new_token(prefix: str = PREFIX) -> str:
    body = f"{prefix}{secrets.token_urlsafe(32)}"
    return body + _checksum(body)


def is_token(text: object, prefix: str = PREFIX) -> bool:
    """Whether the text has the prefix, the length and the checksum of a token."""
    if not isinstance(text, str) or len(text) != len(prefix) + SECRET + CHECKSUM or not text.isascii():
        return False
    body = text[:-CHECKSUM]
    return body.startswith(prefix) and secrets.compare_digest(_checksum(body), text[-CHECKSUM:])


def hash_of(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def shown_of(text: str) -> str:
    """The beginning of a token: enough to find it in a list, too little to be of use."""
    return text[: text.index("_") + 1 + SHOWN]


def _checksum(body: str) -> str:
    return urlsafe_b64encode(zlib.crc32(body.encode()).to_bytes(4, "big")).rstrip(b"=").decode()


def _until(expires: datetime | Duration | None) -> tuple[datetime | None, float | None]:
    if expires is None:
        return None, None
    if isinstance(expires, datetime):
        return instant(expires, "expires"), None
    lasting = seconds(expires, "expires")
    if not MIN_LIFETIME <= lasting <= MAX_LIFETIME:
        raise InvalidSetting("a token must last from one second to 20 years", code="invalid_duration")
    return None, lasting
