"""Tenants: their limits, and their shares of queues that tenants share fairly.

A tenant need not be registered; none of this applies to its jobs then. The maximum of running jobs and the rate are
stored as a limit of scope ``tenant`` and shown here with the other settings.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, Final, TypedDict

from holdfast.engine.declared import Help
from holdfast.engine.hints import check_options
from holdfast.engine.names import check_name
from holdfast.engine.units import Duration
from holdfast.errors import InvalidSetting
from holdfast.features.limits.model import MAX_COUNT, Rule

MOST_PENDING: Final = 100_000_000
MOST_WEIGHT: Final = 1000
TITLE_LIMIT: Final = 200
EVERY_QUEUE: Final = "*"


@dataclass(frozen=True, slots=True)
class Tenant:
    """A tenant with its limits and its usage. ``share`` is its part of the started jobs as long as every tenant that
    has waiting jobs keeps enqueuing; None if no queue is shared, or if it has no waiting jobs. An unregistered tenant
    has no ``created_at``."""

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
    """The settings to change. An omitted one does not change; None removes it."""

    title: Annotated[str | None, Help("Display name.", longest=TITLE_LIMIT, clear=True)]
    max_pending: Annotated[
        int | None, Help("Maximum waiting jobs; more are refused.", low=0, high=MOST_PENDING, clear=True)
    ]
    max_running: Annotated[int | None, Help("Maximum running jobs; more wait.", low=0, high=MAX_COUNT, clear=True)]
    rate: Annotated[
        str | tuple[int, Duration] | None,
        Help("Maximum starts per period: 10/s.", "N/SPAN", longest=50, clear=True),
    ]
    burst: Annotated[int | None, Help("Maximum starts at the same moment (1: evenly spread).", low=1, high=MAX_COUNT)]
    weight: Annotated[int | None, Help("Share relative to other tenants.", low=1, high=MOST_WEIGHT, clear=True)]


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
class QueueShare:
    """The position of a job in a shared queue: how many jobs of its own tenant are ahead of it, and how many tenants
    have waiting jobs there. Both are counted up to a limit."""

    ahead: int
    tenants: int
    weight: int


def is_shared(queue: str, fair: Sequence[str]) -> bool:
    """Whether tenants share a queue. ``*`` means every queue; ``*`` with ``-mail`` every queue but mail."""
    return queue in fair or (EVERY_QUEUE in fair and f"-{queue}" not in fair)


def fair_text(fair: Sequence[str]) -> str:
    """The result of ``fair_queues`` as text."""
    if EVERY_QUEUE not in fair:
        return f"Shared fairly: {', '.join(fair)}" if fair else "No queue is shared"
    exceptions = [queue.removeprefix("-") for queue in fair if queue != EVERY_QUEUE]
    return f"Every queue is shared fairly{', except ' + ', '.join(exceptions) if exceptions else ''}"


def checked_settings(options: TenantOptions) -> dict[str, Any]:
    """Check the options of a tenant. Returns them in the form that the stores take."""
    check_options(options, TenantOptions.__annotations__)
    settings: dict[str, Any] = {}
    if "title" in options:
        title = options["title"]
        settings["title"] = None if title is None else check_name(title, "title", limit=TITLE_LIMIT)
    for name, least, most in (("max_pending", 0, MOST_PENDING), ("weight", 1, MOST_WEIGHT)):
        if name in options:
            settings[name] = _whole(options[name], name, least, most)  # type: ignore[literal-required]
    if "max_running" in options:
        running = options["max_running"]
        settings["max_running"] = None if running is None else Rule.of("tenant", "t", running).concurrency
    if options.get("burst") is not None and options.get("rate") is None:
        raise InvalidSetting("a burst needs a rate", code="invalid_limit")
    if "rate" in options:
        rate = options["rate"]
        rule = None if rate is None else Rule.of("tenant", "t", None, rate, options.get("burst"))
        settings |= {name: None if rule is None else getattr(rule, name) for name in ("rate", "per", "burst")}
    return settings


def _whole(value: object, what: str, least: int, most: int) -> int | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise InvalidSetting(f"{what} must be a number from {least} to {most:,}, not {value!r}", code="invalid_limit")
    return value


def shares(tenants: list[Tenant], shared: bool) -> dict[str, float]:
    """The share of each tenant that has waiting jobs."""
    weights = {tenant.name: tenant.weight for tenant in tenants if tenant.pending > 0} if shared else {}
    total = sum(weights.values())
    return {name: weight / total for name, weight in weights.items()}
