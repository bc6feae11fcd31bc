"""Roles and scopes: what somebody who asks over HTTP may do. Pure; tokens carry them, the gate holds to them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Final

from holdfast.errors import InvalidSetting


class Scope(StrEnum):
    """One thing that may be allowed. Every route and every action of a page asks for exactly one."""

    READ = "read"
    ENQUEUE = "enqueue"
    OPERATE = "operate"
    """Cancel, move, redrive, discard, pause, edit: what is done to jobs, queues and schedules that are there."""
    DECIDE = "decide"
    WORK = "work"
    """Claim, heartbeat, checkpoint and settle; and the tick, which runs jobs here."""
    ADMIN = "admin"
    """Tenants, executors, rules, retention, limits, tokens, connectors, endpoints."""


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
    """What these roles allow together; with ``only``, of that no more than this."""
    lists: tuple[object, ...] = (roles, only)
    for given in lists:
        if not isinstance(given, Iterable):
            raise InvalidSetting(
                f"roles and scopes are lists of names, not {type(given).__name__}", code="unknown_role"
            )
    try:
        allowed = frozenset[Scope]().union(*(ROLES[Role(role)] for role in roles))
        narrowed = frozenset(Scope(scope) for scope in only)
    except ValueError as error:
        raise InvalidSetting(
            f"there is no such role or scope: {error}",
            code="unknown_role",
            fix=f"Roles: {', '.join(Role)}. Scopes: {', '.join(Scope)}.",
        ) from None
    return allowed & narrowed if narrowed else allowed
