"""Limits: how many jobs run at once, and how many are begun in a time (SC-16).

A limit counts the jobs of one *scope*: all of them, those of a queue, a kind, a key, a resource, an agent or a tenant.
``*`` as the name stands for each name by itself: every key has a count of its own. A job is under every limit that
counts it, and is begun when all of them have room.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Literal, NamedTuple, TypedDict

from holdfast.engine.names import check_name
from holdfast.engine.units import Duration, seconds
from holdfast.errors import InvalidSetting

Scope = Literal["all", "queue", "kind", "key", "resource", "agent", "tenant"]
SCOPES: Final[tuple[Scope, ...]] = ("all", "queue", "kind", "key", "resource", "agent", "tenant")
EACH: Final = "*"
MOST: Final = 1_000_000
MOST_USES: Final = 20
NAME_LIMIT: Final = 255
SHORTEST, LONGEST = 0.001, 366 * 86_400.0

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
    """A limit as it is set. ``running`` and ``waiting`` are the jobs that count against it now and that it holds back;
    the tenant ``*`` counts those of all tenants together. A ``rate`` is so many in ``per`` seconds."""

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


class LimitOptions(TypedDict, total=False):
    """What is limited (one of the names, or none of them for all jobs) and how far."""

    queue: str
    kind: str
    key: str
    resource: str
    agent: str
    tenant: str
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
        """As people say it: ``rate="100/m"`` or ``(100, "1m")``; without a burst a whole rate may come at once."""
        if concurrency is None and rate is None:
            raise InvalidSetting("a limit says how many run at once, or how often one is begun", code="invalid_limit")
        if burst is not None and rate is None:
            raise InvalidSetting("a burst belongs to a rate", code="invalid_limit")
        if concurrency is not None:
            _whole(concurrency, "concurrency", 0)
        if rate is None:
            return cls(scope, name, concurrency)
        count, per = _rate(rate)
        return cls(scope, name, concurrency, count, per, count if burst is None else _whole(burst, "burst", 1))


def counted(**names: str | None) -> tuple[str, str]:
    """The scope and the name of what is limited or reserved, of names of which one is given: none is everything."""
    given = [(scope, name) for scope, name in names.items() if name is not None]
    if len(given) > 1:
        raise InvalidSetting(f"name one of {', '.join(scope for scope, _ in given)}", code="conflicting_options")
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
        raise InvalidSetting(f"a job uses at most {MOST_USES} things", code="invalid_limit")
    return tuple(dict.fromkeys(names))


def tokens(left: float | None, since: float, rule: Rule) -> float:
    """What is in a bucket that had so many tokens so many seconds ago; it starts full."""
    burst = float(rule.burst or 0)
    if left is None:
        return burst
    return min(burst, left + max(since, 0.0) * (rule.rate or 0) / (rule.per or 1.0))


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
    if not SHORTEST <= span <= LONGEST:
        raise InvalidSetting(f"a rate is for {SHORTEST} s to a year, not {span:g} s", code="invalid_limit")
    return _whole(count, "rate", 1), span


def _whole(value: object, what: str, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= MOST:
        raise InvalidSetting(f"{what} is a number from {least} to {MOST:,}, not {value!r}", code="invalid_limit")
    return value
