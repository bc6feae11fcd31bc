"""``Limit``, ``Rule``, buckets; ``Pause``; ``Reservation``; ``QueueSetting``.

Limits: how many jobs run at once, and how many are begun in a time (SC-16).

A limit counts the jobs of one *scope*: all of them, those of a queue, a kind, a key, a resource, an agent or a tenant.
``*`` as the name stands for each name by itself: every key has a count of its own. A job is under every limit that
counts it, and is begun when all of them have room.

Pausing (DP-18): nothing of what a pause holds is begun, until somebody resumes it or its time is over. Pure.

A pause is for everything, a queue, a kind or an agent; of every tenant (``*``) or of one. Everything of every tenant
is the whole system: while that is paused the duties rest as well, and new jobs are refused unless it says otherwise.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, Literal, NamedTuple, TypedDict

from holdfast.engine.job import EVERY_TENANT
from holdfast.engine.names import check_name
from holdfast.engine.outcome import Failed, Succeeded
from holdfast.engine.settlement import storable
from holdfast.engine.times import instant
from holdfast.engine.units import Duration, seconds
from holdfast.errors import Conflict, InvalidInput, InvalidSetting, Refused

Scope = Literal["all", "queue", "kind", "key", "resource", "agent", "tenant"]
SCOPES: Final[tuple[Scope, ...]] = ("all", "queue", "kind", "key", "resource", "agent", "tenant")
EACH: Final = "*"
MOST: Final = 1_000_000
MOST_USES: Final = 20
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
    """What is counted together: whose jobs, and of them those of one name."""

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


class LimitTarget(TypedDict, total=False):
    """What is limited: one of the names, or none of them for all jobs."""

    queue: str
    kind: str
    key: str
    resource: str
    agent: str
    tenant: str


class LimitOptions(LimitTarget, total=False):
    """What is limited and how far."""

    concurrency: int | None
    rate: str | tuple[int, Duration] | None
    burst: int | None


@dataclass(frozen=True, slots=True)
class Rule:
    """What is set, complete and checked."""

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
        """As people say it: ``rate="100/m"`` or ``(100, "1m")``; without a burst they start evenly, one by one."""
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


def counted(**names: str | None) -> tuple[str, str]:
    """The scope and the name of what is limited or reserved, of names of which one is given: none is everything."""
    given = [(scope, name) for scope, name in names.items() if name is not None]
    if len(given) > 1:
        raise InvalidSetting(f"name only one of {', '.join((scope for scope, _ in given))}", code="conflicting_options")
    if not given:
        return "all", EACH
    scope, name = given[0]
    return scope, name if name == EACH else check_name(name, scope, limit=NAME_LIMIT)


def uses(limit_key: object, resources: object) -> tuple[str, ...]:
    """What a job counts against besides its queue and kind, as it is kept with the job."""
    if isinstance(resources, str) or not isinstance(resources, Iterable):
        raise InvalidSetting("resources must be a list of names", code="invalid_name")
    names = [] if limit_key is None else [f"key:{check_name(limit_key, 'limit_key', limit=NAME_LIMIT)}"]
    names += [f"resource:{check_name(name, 'resource', limit=NAME_LIMIT)}" for name in resources]
    if len(names) > MOST_USES:
        raise InvalidSetting(f"a job can use at most {MOST_USES} resources", code="invalid_limit")
    return tuple(dict.fromkeys(names))


LATE = 0.1


def tokens(left: float | None, since: float, rule: Rule) -> float:
    """What is in a bucket that had so many tokens so many seconds ago; it starts with its burst.

    Besides the burst it keeps what comes in during a tenth of a second: a worker comes a few milliseconds after a token
    does, and what came in meanwhile would be lost each time."""
    burst = float(rule.burst or 0)
    if left is None:
        return burst
    pace = (rule.rate or 0) / (rule.per or 1.0)
    return min(burst + LATE * pace, left + max(since, 0.0) * pace)


def _rate(value: object) -> tuple[int, float]:
    count: object = None
    per: object = None
    if isinstance(value, str):
        found = _RATE.fullmatch(value)
        if found:
            count, per = int(found[1]), _SPANS.get(found[2], found[2])
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
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= MOST:
        raise InvalidSetting(f"{what} must be a number from {least} to {MOST:,}, not {value!r}", code="invalid_limit")
    return value


PAUSE_SHORTEST: Final = 0.001


@dataclass(frozen=True, slots=True)
class Pause:
    """What is paused, why, by whom, and until when. None means until it is resumed."""

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
        """It is the whole system's."""
        return self.scope == "all" and self.tenant == EVERY_TENANT

    @property
    def says(self) -> str:
        """The words of ``pause_says``."""
        until = "" if self.until is None else f" until {_at(self.until)}"
        return f"{self.what} was paused by {self.set_by} at {_at(self.since)}{until}: {self.reason}"

    @property
    def options(self) -> str:
        """How it is named on the command line."""
        if self.halts:
            return "--all"
        parts = [] if self.scope == "all" else [f"--{self.scope} {self.name}"]
        return " ".join(parts if self.tenant == EVERY_TENANT else [*parts, f"--tenant {self.tenant}"])

    def holds(self, tenant: str, queue: str, kind: str, agent: str | None) -> bool:
        named = {"all": EACH, "queue": queue, "kind": kind, "agent": agent}[self.scope]
        return self.tenant in (EVERY_TENANT, tenant) and named == self.name

    def is_over(self, now: datetime) -> bool:
        return self.until is not None and self.until <= now


@dataclass(frozen=True, slots=True)
class Pausing:
    """What is to be paused, checked. ``lasting`` is in seconds of the store's clock, in place of ``until``."""

    tenant: str
    scope: str
    name: str
    reason: str
    until: datetime | None = None
    lasting: float | None = None
    refuse_enqueue: bool | None = None

    @property
    def refuses(self) -> bool:
        """Unless it was said, the whole system refuses new jobs, and the rest takes them."""
        if self.refuse_enqueue is not None:
            return self.refuse_enqueue
        return self.scope == "all" and self.tenant == EVERY_TENANT

    @classmethod
    def of(
        cls,
        what: tuple[str, str, str],
        reason: object,
        until: datetime | Duration | None = None,
        refuse_enqueue: bool | None = None,
    ) -> Pausing:
        why = storable(reason) if isinstance(reason, str) else None
        if why is None or not why.strip():
            raise InvalidInput("a pause needs a reason", code="reason_required")
        tenant, scope, name = what
        if not isinstance(until, datetime):
            lasting = None if until is None else seconds(until, "time")
            if lasting is not None and lasting < PAUSE_SHORTEST:
                raise InvalidSetting("a pause must last at least one millisecond", code="invalid_duration")
            return cls(tenant, scope, name, why, None, lasting, refuse_enqueue)
        return cls(tenant, scope, name, why, instant(until, "until"), None, refuse_enqueue)


class Named(TypedDict, total=False):
    """What is paused or resumed: a queue, a kind or an agent, of every tenant or of the one named; a tenant; or
    everything."""

    queue: str | None
    kind: str | None
    agent: str | None
    tenant: str | None
    everything: bool


def named(
    queue: str | None = None,
    kind: str | None = None,
    agent: str | None = None,
    tenant: str | None = None,
    everything: bool = False,
) -> tuple[str, str, str]:
    """The tenant, the scope and the name. Everything has to be said: nobody comes to it by leaving something out."""
    given = [(scope, name) for scope, name in (("queue", queue), ("kind", kind), ("agent", agent)) if name is not None]
    if len(given) > 1 or (everything and (given or tenant is not None)):
        raise InvalidSetting("name only one of queue, kind, agent, tenant and everything", code="conflicting_options")
    if not given and tenant is None and not everything:
        raise InvalidSetting("name a queue, a kind, an agent, a tenant or everything", code="nothing_named")
    whose = EVERY_TENANT if tenant is None else check_name(tenant, "tenant")
    if not given:
        return whose, "all", EACH
    scope, name = given[0]
    return whose, scope, check_name(name, scope, limit=NAME_LIMIT)


def in_words(scope: str, name: str, tenant: str) -> str:
    thing = "everything" if scope == "all" else f"{scope} {name}"
    return thing if tenant == EVERY_TENANT else f"{thing} of tenant {tenant}"


def refused(pause: Pause, kind: str) -> Refused:
    """A job of this kind is not accepted now."""
    return Refused(f"jobs of kind {kind} are refused: {pause.says}", code="paused", fix=LATER)


LATER: Final = "Enqueue it later, or resume what is paused: holdfast pauses, holdfast resume."


def _at(moment: datetime) -> str:
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


# How soon whoever waits for its turn looks again: quickly at first, then at leisure.
LOOK_EVERY: Final = (0.1, 0.1, 0.1, 0.2, 0.2, 0.3)
LOOK_LATER: Final = 0.5
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
    """The job that records what its holder ran."""

    @property
    def what(self) -> str:
        return "everything" if self.scope == "all" else f"{self.scope} {self.name}"


class ReservationOptions(TypedDict, total=False):
    """A resource, a queue, or (with neither) everything; ``ttl`` is how long it lives without renewal."""

    resource: str | None
    queue: str | None
    ttl: Duration
    reason: str | None


@dataclass(frozen=True, slots=True)
class Reserved(Reservation):
    """The same for whoever has just asked: ``running`` jobs are under way there, ``ahead`` others before it in line."""

    running: int
    ahead: int


@dataclass(frozen=True, slots=True)
class Ask:
    """What somebody asks for, again and again under one id: that keeps it alive for ``ttl`` seconds more."""

    id: str
    scope: str
    name: str
    ttl: float
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Standing:
    """Where whoever asked stands: ``ahead`` are before it in the line, ``running`` jobs under way in its scope."""

    state: ReservationState
    running: int
    ahead: int


def is_begun(standing: Standing | Reserved, *, at_once: bool) -> bool:
    """Whether the block of whoever asked may begin; ``reservation_lost`` when it was ended by somebody else."""
    if standing.state in ("released", "expired", "withdrawn"):
        raise Conflict("the reservation was released by another caller", code="reservation_lost")
    return standing.state == "active" and (at_once or not standing.running)


def busy(what: str, standing: Standing | Reserved) -> Conflict:
    """It has waited long enough."""
    if standing.state == "active":
        why = f"{standing.running} jobs are still running there"
    else:
        why = f"{standing.ahead} others are before this one"
    return Conflict(
        f"{what} could not be reserved: {why}", code="reservation_busy", fix="Wait longer, or try again later."
    )


def outlived() -> Conflict:
    return Conflict("the reservation ended before its block: jobs may have run meanwhile", code="reservation_lost")


RunEnd = Succeeded | Failed
"""How the recorded run of a reservation ended, as its holder says it."""


def why_left(error: BaseException | None) -> str:
    return "released" if error is None else f"left with {type(error).__name__}"


NOBODYS: Final = Standing("withdrawn", 0, 0)
"""Of an id that is another tenant's."""


@dataclass(frozen=True, slots=True)
class QueueSetting:
    """A queue in which waiting counts: ``aging_step`` of priority for each ``aging`` seconds, up to ``aging_most``."""

    tenant: str
    queue: str
    aging: float
    aging_step: int
    aging_most: int
    set_by: str
    updated_at: datetime
