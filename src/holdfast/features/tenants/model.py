"""Tenants (JF-12): what they are held to, and their share where a queue is shared fairly.

A tenant need not be registered: without it nothing here holds for its jobs. How many run at once and how often one is
begun are limits like others, of the scope ``tenant``; they are shown here with the rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, TypedDict

from holdfast.engine.names import check_name, check_options
from holdfast.engine.units import Duration
from holdfast.errors import InvalidSetting
from holdfast.features.limits.model import Rule

MOST_PENDING: Final = 100_000_000
MOST_WEIGHT: Final = 1000
TITLE_LIMIT: Final = 200
EVERY_QUEUE: Final = "*"


@dataclass(frozen=True, slots=True)
class Tenant:
    """A tenant and what its jobs use of what they may. ``share`` is its part of what is begun while all who have jobs
    waiting keep them coming; None where nothing is shared, or it has none waiting. One that nobody registered has no
    ``created_at``."""

    name: str
    title: str | None = None
    max_pending: int | None = None
    weight: int = 1
    max_running: int | None = None
    rate: int | None = None
    per: float | None = None
    burst: int | None = None
    set_by: str | None = None
    created_at: datetime | None = None
    updated_at: datetime | None = None
    pending: int = 0
    running: int = 0
    share: float | None = None

    @property
    def registered(self) -> bool:
        return self.created_at is not None


class TenantOptions(TypedDict, total=False):
    """What is set; what is left out stays as it is, and None takes it away."""

    title: str | None
    max_pending: int | None
    max_running: int | None
    rate: str | tuple[int, Duration] | None
    burst: int | None
    weight: int | None


@dataclass(frozen=True, slots=True)
class Pin:
    """A database login that may act for one tenant only. ``exists`` is False if the server has no such
    login any more: it was dropped or renamed, and a renamed login is not pinned."""

    login: str
    tenant: str
    set_by: str
    created_at: datetime
    exists: bool = True


@dataclass(frozen=True, slots=True)
class TurnOf:
    """Where a job stands in a queue that is shared: how many of its own tenant are before it, and how many tenants have
    jobs waiting there. Both are counted up to a limit."""

    ahead: int
    tenants: int
    weight: int


def in_shares(queue: str, fair: Sequence[str]) -> bool:
    """Whether tenants share a queue: ``*`` is every queue, and beside it ``-mail`` every queue but mail."""
    return queue in fair or (EVERY_QUEUE in fair and f"-{queue}" not in fair)


def fair_text(fair: Sequence[str]) -> str:
    """In words: what ``fair_queues`` returns."""
    if EVERY_QUEUE not in fair:
        return f"Shared fairly: {', '.join(fair)}" if fair else "No queue is shared"
    but = [each.removeprefix("-") for each in fair if each != EVERY_QUEUE]
    return f"Every queue is shared fairly{', except ' + ', '.join(but) if but else ''}"


def terms(options: TenantOptions) -> dict[str, Any]:
    """What is to be set, complete and checked, as the stores take it."""
    check_options(options, TenantOptions.__annotations__)
    found: dict[str, Any] = {}
    if "title" in options:
        title = options["title"]
        found["title"] = None if title is None else check_name(title, "title", limit=TITLE_LIMIT)
    for name, least, most in (("max_pending", 0, MOST_PENDING), ("weight", 1, MOST_WEIGHT)):
        if name in options:
            found[name] = _whole(options[name], name, least, most)  # type: ignore[literal-required]
    if "max_running" in options:
        running = options["max_running"]
        found["max_running"] = None if running is None else Rule.of("tenant", "t", running).concurrency
    if options.get("burst") is not None and options.get("rate") is None:
        raise InvalidSetting("a burst needs a rate", code="invalid_limit")
    if "rate" in options:
        rate = options["rate"]
        rule = None if rate is None else Rule.of("tenant", "t", None, rate, options.get("burst"))
        found |= {each: None if rule is None else getattr(rule, each) for each in ("rate", "per", "burst")}
    return found


def _whole(value: object, what: str, least: int, most: int) -> int | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise InvalidSetting(f"{what} must be a number from {least} to {most:,}, not {value!r}", code="invalid_limit")
    return value


def with_shares(tenants: list[Tenant], shared: bool) -> dict[str, float]:
    """The part of each that has jobs waiting."""
    heavy = {each.name: each.weight for each in tenants if each.pending > 0} if shared else {}
    total = sum(heavy.values())
    return {name: weight / total for name, weight in heavy.items()}
