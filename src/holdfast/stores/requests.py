"""What store operations take: ``ClaimRequest``, ``JobFilter``, ``Reschedule``, ``SendEvent``, list filters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from datetime import datetime
from typing import Any, Literal

from holdfast.engine.job import EVERY_TENANT
from holdfast.engine.retry import attempt_limit
from holdfast.engine.states import State
from holdfast.engine.times import instant, instant_or_none
from holdfast.engine.units import Duration, seconds
from holdfast.errors import InvalidSetting

OperatorAction = Literal["cancel", "redrive", "discard"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimRequest:
    """``begin`` starts what is claimed at once; without it jobs wait as leased. ``kinds`` None takes any kind.

    ``after`` has a place (priority, position) for queues whose search begins behind it; a store for which walking
    past what was taken costs nothing does not look at it.
    """

    lease: str
    queues: tuple[str, ...]
    want: int
    begin: bool = True
    kinds: tuple[str, ...] | None = None
    tenant: str = EVERY_TENANT
    after: Mapping[str, tuple[int, int]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reschedule:
    """When a waiting job is to be run: at a time, a while from now by the store's clock, or at once."""

    at: datetime | None = None
    delay: float | None = None
    max_attempts: int | None = None

    @classmethod
    def of(cls, at: datetime | None, delay: Duration | None, max_attempts: int | None) -> Reschedule:
        """As people say it, checked."""
        if at is not None and delay is not None:
            raise InvalidSetting("pass a time or a delay, not both", code="conflicting_options")
        limit = attempt_limit(max_attempts)
        span = None if delay is None else seconds(delay, "delay")
        return cls(at=instant_or_none(at, "the time"), delay=span, max_attempts=limit)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFilter:
    """What to list, newest first. ``before`` is the id of the last job of the page before (CX-14)."""

    tenant: str
    state: State | None = None
    kind: str | None = None
    queue: str | None = None
    agent: str | None = None
    executor: str | None = None
    tag: str | None = None
    correlation_id: str | None = None
    parent_id: str | None = None
    fingerprint: str | None = None
    """Open dead letters of this group."""
    since: datetime | None = None
    until: datetime | None = None
    before: str | None = None
    limit: int = 50
    payloads: bool = True
    """Without them a long page stays small: each is None then."""


@dataclass(frozen=True, slots=True)
class Counted:
    """How many jobs there are in each state. A count of ``most`` means so many or more; ``of_newest`` says that no more
    than so many of the newest were looked at."""

    counts: dict[State, int]
    most: int
    of_newest: int | None


@dataclass(frozen=True, slots=True)
class SchemaStatus:
    """``pending`` names what ``migrate`` would apply; ``unknown`` what was applied and is not of this release."""

    applied: tuple[str, ...]
    pending: tuple[str, ...]
    unknown: tuple[str, ...]

    @property
    def current(self) -> bool:
        return not self.pending and not self.unknown

    @property
    def unsupported(self) -> bool:
        """Whether a development version created the database. A newer release has every migration of this one."""
        return bool(self.unknown) and any(name != "code" for name in self.pending)


@dataclass(frozen=True, slots=True)
class Login:
    """A login of the server that has roles of Holdfast. ``bypasses``: row-level security does not apply to it."""

    name: str
    roles: tuple[str, ...]
    bypasses: bool
    owns: bool
    tenant: str | None = None
    """The one tenant that it is pinned to."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing the doctor looked at."""

    name: str
    ok: bool
    says: str
    fix: str | None = None


@dataclass(frozen=True, slots=True)
class SendEvent:
    """An event about to be told. ``data`` is JSON text; the id is ours, so that telling it again tells nothing new."""

    id: str
    name: str
    data: str
    key: str | None = None
    job_id: str | None = None
    cause_id: str | None = None
    """The job whose handler tells it."""


@dataclass(frozen=True, slots=True)
class SentResult:
    """A sent event. ``created`` is False if one with the same key was sent before; ``woke`` counts the jobs that
    waited for it."""

    id: str
    created: bool
    woke: int


_PAGE = frozenset({"before", "limit", "payloads"})
_ALL = frozenset(field.name for field in fields(JobFilter))
_WHICH = _ALL - _PAGE - {"tenant"}


def page_of(tenant: str, wanted: Mapping[str, Any]) -> JobFilter:
    """Some of them, newest first."""
    limit = wanted.get("limit", 1)
    if not isinstance(limit, int) or limit < 1:
        raise InvalidSetting("limit must be at least 1", code="invalid_limit")
    return JobFilter(**{"tenant": tenant, **_checked(wanted, _ALL)})


def all_of(tenant: str, wanted: Mapping[str, Any]) -> JobFilter:
    """All of them."""
    return JobFilter(tenant=tenant, **_checked(wanted, _WHICH))


def _checked(wanted: Mapping[str, Any], known: frozenset[str]) -> dict[str, Any]:
    if unknown := wanted.keys() - known:
        raise InvalidSetting(f"jobs cannot be selected by {', '.join(sorted(unknown))}", code="unknown_option")
    given = {name: value for name, value in wanted.items() if value is not None}
    for name in ("since", "until"):
        if name in given:
            given[name] = instant(given[name], name)
    if "state" in given:
        given["state"] = _state(given["state"])
    return given


def _state(given: object) -> State:
    try:
        return State(given)  # type: ignore[arg-type]
    except ValueError:
        raise InvalidSetting(f"there is no state {given!r}: {', '.join(State)}", code="unknown_state") from None
