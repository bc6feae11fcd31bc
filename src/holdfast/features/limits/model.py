"""Records and rules of limits, pauses, reservations and queue settings. Pure.

A limit bounds how many jobs of one *scope* run at the same time, and how many start per period. A scope is all jobs, or
those of a queue, a kind, a key, a resource, an agent or a tenant. The name ``*`` stands for each name separately: every
key has its own count. A job is under every limit that counts it, and starts when all of them allow it.

A pause stops starts until it is removed or its time has passed. It applies to everything, a queue, a kind or an agent,
of every tenant (``*``) or of one. Pausing everything of every tenant turns the system off: maintenance tasks stop as
well, and new jobs are refused unless the pause says otherwise.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Final, Literal, NamedTuple, TypedDict, Unpack

from holdfast.engine.declared import Help
from holdfast.engine.job import EVERY_TENANT
from holdfast.engine.names import NamedKind, check_name
from holdfast.engine.outcome import Failed, Succeeded
from holdfast.engine.settlement import storable
from holdfast.engine.times import instant
from holdfast.engine.units import Duration, seconds
from holdfast.errors import InvalidInput, InvalidSetting, Refused

Scope = Literal["all", "queue", "kind", "key", "resource", "agent", "tenant"]
SCOPES: Final[tuple[Scope, ...]] = ("all", "queue", "kind", "key", "resource", "agent", "tenant")
EACH: Final = "*"
MAX_COUNT: Final = 1_000_000
MAX_USES: Final = 20
NAME_LIMIT: Final = 255
RATE_SHORTEST, RATE_LONGEST = 0.001, 366 * 86_400.0

_RATE = re.compile(r"\s*(\d{1,9})\s*(?:/|per)\s*(\S.*?)\s*")
_SPANS = {
    "s": "1s",
    "second": "1s",
    "m": "1m",
    "min": "1m",
    "minute": "1m",
    "h": "1h",
    "hour": "1h",
    "d": "1d",
    "day": "1d",
}


class Bucket(NamedTuple):
    """Jobs that are counted together: those of a tenant and one name of a scope."""

    tenant: str
    scope: str
    name: str

    @property
    def text(self) -> str:
        return json.dumps(list(self), ensure_ascii=False, separators=(",", ":"))


@dataclass(frozen=True, slots=True)
class Limit:
    """A limit. ``running`` and ``waiting`` count the jobs under it and those it holds back; the tenant ``*``
    counts all tenants together. ``rate`` is the number of starts in ``per`` seconds."""

    tenant: str
    scope: str
    name: str
    concurrency: int | None
    rate: int | None
    per: float | None
    burst: int | None
    set_by: str
    created_at: datetime
    updated_at: datetime
    running: int = 0
    waiting: int = 0


COUNTS: Final = ("running", "waiting")
"""The fields of a limit that are not columns of its table."""


class LimitTarget(TypedDict, total=False):
    """The target of a limit: one of the names, or none of them for all jobs."""

    queue: Annotated[str, Help("Apply to a queue; '*' applies to each queue separately.", "NAME")]
    kind: Annotated[str | NamedKind, Help("Apply to a kind; '*' applies to each kind separately.", "NAME")]
    key: Annotated[str, Help("Apply to a limit key; '*' applies to each key separately.", "NAME")]
    resource: Annotated[str, Help("Apply to a resource; '*' applies to each resource separately.", "NAME")]
    agent: Annotated[str, Help("Apply to an agent; '*' applies to each agent separately.", "ID")]
    tenant: Annotated[
        str,
        Help(
            "With --all-tenants: apply to a tenant; '*' applies to each tenant separately.",
            "NAME",
            option="--of-tenant",
            http=False,
        ),
    ]


class LimitOptions(LimitTarget, total=False):
    """The target of a limit and its bounds."""

    concurrency: Annotated[int | None, Help("Maximum number of running jobs.", low=0, high=2**31 - 1)]
    rate: Annotated[
        str | tuple[int, Duration] | None, Help("Maximum starts per period: 10/s, 100/5m.", "N/SPAN", longest=50)
    ]
    burst: Annotated[int | None, Help("Maximum starts at the same moment (1: evenly spread).", low=1, high=2**31 - 1)]


@dataclass(frozen=True, slots=True)
class Rule:
    """A checked limit, ready to be stored."""

    scope: str
    name: str
    concurrency: int | None = None
    rate: int | None = None
    per: float | None = None
    burst: int | None = None

    @classmethod
    def of(
        cls,
        scope: str,
        name: str,
        concurrency: int | None = None,
        rate: str | tuple[int, Duration] | None = None,
        burst: int | None = None,
    ) -> Rule:
        """Check a limit: ``rate="100/m"`` or ``(100, "1m")``; without a burst, starts are spread evenly."""
        if concurrency is None and rate is None:
            raise InvalidSetting("a limit needs a concurrency or a rate", code="invalid_limit")
        if burst is not None and rate is None:
            raise InvalidSetting("a burst needs a rate", code="invalid_limit")
        if concurrency is not None:
            _whole(concurrency, "concurrency", 0)
        if rate is None:
            return cls(scope, name, concurrency)
        count, per = _rate(rate)
        return cls(scope, name, concurrency, count, per, 1 if burst is None else _whole(burst, "burst", 1))


def limit_target(**names: object) -> tuple[str, str]:
    """The scope and the name of a limit or a reservation. At most one name may be given; none means everything."""
    given = [(scope, name) for scope, name in names.items() if name is not None]
    if len(given) > 1:
        raise InvalidSetting(f"name only one of {', '.join((scope for scope, _ in given))}", code="conflicting_options")
    if not given:
        return "all", EACH
    scope, name = given[0]
    return scope, EACH if name == EACH else check_name(name, scope, limit=NAME_LIMIT)


def uses(limit_key: object, resources: object) -> tuple[str, ...]:
    """The limit key and resources of a job, as stored with it. It counts against them besides its queue and kind."""
    if isinstance(resources, str) or not isinstance(resources, Iterable):
        raise InvalidSetting("resources must be a list of names", code="invalid_name")
    names = [] if limit_key is None else [f"key:{check_name(limit_key, 'limit_key', limit=NAME_LIMIT)}"]
    names += [f"resource:{check_name(name, 'resource', limit=NAME_LIMIT)}" for name in resources]
    if len(names) > MAX_USES:
        raise InvalidSetting(f"a job can use at most {MAX_USES} resources", code="invalid_limit")
    return tuple(dict.fromkeys(names))


SLACK = 0.1


def tokens(left: float | None, since: float, rule: Rule) -> float:
    """The tokens in a bucket that had ``left`` tokens ``since`` seconds ago; a new bucket starts with its burst.

    A bucket holds the burst and the tokens of another tenth of a second: a worker claims a few milliseconds after a
    token has arrived, and tokens that arrive in between would be lost each time.
    """
    burst = float(rule.burst or 0)
    if left is None:
        return burst
    pace = (rule.rate or 0) / (rule.per or 1.0)
    return min(burst + SLACK * pace, left + max(since, 0.0) * pace)


def _rate(value: object) -> tuple[int, float]:
    count: object = None
    per: object = None
    if isinstance(value, str):
        match = _RATE.fullmatch(value)
        if match:
            count, per = int(match[1]), _SPANS.get(match[2], match[2])
    elif isinstance(value, tuple) and len(value) == 2:
        count, per = value
    if count is None:
        raise InvalidSetting(f"{value!r} is not a rate", code="invalid_limit", fix='For example "100/m" or (5, "10s").')
    span = seconds(per, "span of a rate")
    if not RATE_SHORTEST <= span <= RATE_LONGEST:
        raise InvalidSetting(
            f"the period of a rate must be from {RATE_SHORTEST} s to a year, not {span:g} s", code="invalid_limit"
        )
    return _whole(count, "rate", 1), span


def _whole(value: object, what: str, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= MAX_COUNT:
        raise InvalidSetting(
            f"{what} must be a number from {least} to {MAX_COUNT:,}, not {value!r}", code="invalid_limit"
        )
    return value


PAUSE_SHORTEST: Final = 0.001


@dataclass(frozen=True, slots=True)
class Pause:
    """What is paused, why, by whom, and until when. ``until`` None means until it is resumed."""

    tenant: str
    scope: str
    name: str
    reason: str
    refuse_enqueue: bool
    set_by: str
    since: datetime
    until: datetime | None

    @property
    def what(self) -> str:
        """``everything``, ``queue mail``, ``kind pay of tenant acme``."""
        return in_words(self.scope, self.name, self.tenant)

    @property
    def halts(self) -> bool:
        """Whether it stops the whole system."""
        return self.scope == "all" and self.tenant == EVERY_TENANT

    @property
    def says(self) -> str:
        """The pause as a sentence; the same text as the SQL function ``pause_message``."""
        until = "" if self.until is None else f" until {_at(self.until)}"
        return f"{self.what} was paused by {self.set_by} at {_at(self.since)}{until}: {self.reason}"

    @property
    def options(self) -> str:
        """The options that name it on the command line."""
        target = "--all" if self.scope == "all" else f"--{self.scope} {self.name}"
        return target if self.tenant == EVERY_TENANT else f"{target} --tenant {self.tenant}"

    @property
    def new_jobs(self) -> str:
        """What happens to new jobs."""
        return "refused" if self.refuse_enqueue else "wait"

    def holds(self, tenant: str, queue: str, kind: str, agent: str | None) -> bool:
        name = {"all": EACH, "queue": queue, "kind": kind, "agent": agent}[self.scope]
        return self.tenant in (EVERY_TENANT, tenant) and name == self.name

    def refuses(self, tenant: str, queue: str, kind: str, agent: str | None) -> bool:
        return self.refuse_enqueue and self.holds(tenant, queue, kind, agent)

    def is_over(self, now: datetime) -> bool:
        return self.until is not None and self.until <= now


@dataclass(frozen=True, slots=True)
class PauseDraft:
    """A checked pause, ready to be stored. ``lasting`` is in seconds of the store's clock, instead of ``until``."""

    tenant: str
    scope: str
    name: str
    reason: str
    until: datetime | None = None
    lasting: float | None = None
    refuse_enqueue: bool = False

    @classmethod
    def of(
        cls,
        reason: object,
        until: datetime | Duration | None = None,
        refuse_enqueue: bool | None = None,
        **target: Unpack[PauseTarget],
    ) -> PauseDraft:
        """Check a pause. By default, one of the whole system refuses new jobs, and any other accepts them."""
        why = storable(reason) if isinstance(reason, str) else None
        if why is None or not why.strip():
            raise InvalidInput("a pause needs a reason", code="reason_required")
        tenant, scope, name = pause_target(**target)
        refuses = (tenant, scope) == (EVERY_TENANT, "all") if refuse_enqueue is None else bool(refuse_enqueue)
        if isinstance(until, datetime):
            return cls(tenant, scope, name, why, until=instant(until, "until"), refuse_enqueue=refuses)
        lasting = None if until is None else seconds(until, "time")
        if lasting is not None and lasting < PAUSE_SHORTEST:
            raise InvalidSetting("a pause must last at least one millisecond", code="invalid_duration")
        return cls(tenant, scope, name, why, lasting=lasting, refuse_enqueue=refuses)


class PauseTarget(TypedDict, total=False):
    """The target of a pause: a queue, a kind, an agent or everything, of every tenant or of one."""

    queue: Annotated[str | None, Help("A queue.", "NAME")]
    kind: Annotated[str | NamedKind | None, Help("A kind.", "NAME")]
    agent: Annotated[str | None, Help("An agent.", "ID")]
    everything: Annotated[bool | None, Help("Everything of the tenant, or the whole system.", option="--all")]
    tenant: Annotated[str | None, Help("Only of this tenant; default: of every tenant.", "NAME", http=False)]


class PauseOptions(PauseTarget, total=False):
    """The target of a pause, and how it acts."""

    until: Annotated[datetime | Duration | None, Help("When to resume automatically: a time, or 2h.")]
    refuse_enqueue: Annotated[
        bool | None,
        Help("Refuse new jobs as well; the default for the whole system.", option="--refuse-enqueue/--accept-enqueue"),
    ]


def pause_target(
    queue: str | None = None,
    kind: str | NamedKind | None = None,
    agent: str | None = None,
    everything: bool | None = None,
    tenant: str | None = None,
) -> tuple[str, str, str]:
    """The tenant, the scope and the name. ``everything`` must be given explicitly: it is not the default."""
    given = [(scope, name) for scope, name in (("queue", queue), ("kind", kind), ("agent", agent)) if name is not None]
    if len(given) + bool(everything) > 1:
        raise InvalidSetting("name only one of queue, kind, agent and everything", code="conflicting_options")
    owner = EVERY_TENANT if tenant is None else check_name(tenant, "tenant")
    if everything:
        return owner, "all", EACH
    if not given:
        raise InvalidSetting("name a queue, a kind, an agent or everything", code="nothing_named")
    scope, name = given[0]
    return owner, scope, check_name(name, scope, limit=NAME_LIMIT)


def in_words(scope: str, name: str, tenant: str) -> str:
    target = "everything" if scope == "all" else f"{scope} {name}"
    return target if tenant == EVERY_TENANT else f"{target} of tenant {tenant}"


def refused(pause: Pause, kind: str) -> Refused:
    """The error for a job of this kind that a pause refuses."""
    return Refused(f"jobs of kind {kind} are refused: {pause.says}", code="paused", fix=LATER)


LATER: Final = "Enqueue it later, or resume what is paused: holdfast pauses, holdfast resume."


def _at(moment: datetime) -> str:
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


# Seconds between polls of a caller that waits for its reservation: the first ones, and all later ones.
FIRST_PAUSES: Final = (0.1, 0.1, 0.1, 0.2, 0.2, 0.3)
LATER_PAUSE: Final = 0.5
RESERVATION_SHORTEST, RESERVATION_LONGEST, TTL = 0.1, 3600.0, 30.0

ReservationState = Literal["waiting", "active", "released", "expired", "withdrawn"]


@dataclass(frozen=True, slots=True)
class Reservation:
    """A reservation: who reserved what, since when, and how it ended. The tenant ``*`` blocks the jobs of all
    tenants."""

    id: str
    tenant: str
    scope: str
    name: str
    state: ReservationState
    holder: str
    reason: str | None
    asked_at: datetime
    reserved_at: datetime | None
    expires_at: datetime
    ended_at: datetime | None
    ended_by: str | None
    ended_why: str | None
    job_id: str | None
    """The job that records the work of its holder."""

    @property
    def what(self) -> str:
        return "everything" if self.scope == "all" else f"{self.scope} {self.name}"


class ReservationOptions(TypedDict, total=False):
    """A resource, a queue, or (with neither) everything; ``ttl`` is how long it lives without renewal."""

    resource: Annotated[str | None, Help("A resource; without one and without a queue, everything.", "NAME")]
    queue: Annotated[str | None, Help("A queue.", "NAME")]
    ttl: Annotated[Duration | None, Help("How long it lives without a renewal; default: 30 s.")]
    reason: Annotated[str | None, Help("The reason, stored with the reservation.", longest=2_000)]


@dataclass(frozen=True, slots=True)
class Reserved(Reservation):
    """A reservation for its owner: the number of ``running`` jobs in its scope, and of reservations ``ahead`` of it."""

    running: int
    ahead: int


@dataclass(frozen=True, slots=True)
class ReservationRequest:
    """A request for a reservation. Repeating it with the same id keeps the reservation for another ``ttl`` seconds."""

    id: str
    scope: str
    name: str
    ttl: float
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class ReservationStatus:
    """The state of a request: the number of reservations ``ahead`` of it, and of ``running`` jobs in its scope."""

    state: ReservationState
    running: int
    ahead: int


RunEnd = Succeeded | Failed
"""How the recorded run of a reservation ended, as its holder reports it."""

OTHER_TENANTS: Final = ReservationStatus("withdrawn", 0, 0)
"""The answer for an id that belongs to another tenant."""


@dataclass(frozen=True, slots=True)
class QueueSetting:
    """A queue with aging: the priority of a waiting job rises by ``aging_step`` every ``aging`` seconds, up to
    ``aging_most``."""

    tenant: str
    queue: str
    aging: float
    aging_step: int
    aging_most: int
    set_by: str
    updated_at: datetime
