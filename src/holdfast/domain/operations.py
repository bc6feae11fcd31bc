"""Bulk operations (DP-15): what people do to many jobs, in batches, at a bounded rate, with progress. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Literal

from holdfast.errors import InvalidSetting

BulkVerb = Literal["cancel", "redrive", "discard"]
BULK_VERBS: Final = ("cancel", "redrive", "discard")
BATCH: Final = 100
"""Jobs in one transaction: their locks are kept for a few milliseconds."""
WINDOW: Final = 1_000
"""How many jobs are looked at for one batch where most may have ended already."""
COUNTED: Final = 100_000
"""Up to how many are counted when an operation begins."""
LEAST_RATE: Final = 0.001
MOST_RATE: Final = 1_000_000.0


@dataclass(frozen=True, slots=True)
class Operation:
    """One of them, and how far it has come."""

    id: str
    tenant: str
    verb: BulkVerb
    wanted: dict[str, Any]
    """Which jobs: the names and values of a filter."""
    reason: str | None
    max_retries: int | None
    rate: float | None
    """At most so many jobs a second."""
    state: str
    """``running``, ``done`` or ``cancelled``."""
    total: int
    """How many there were when it began; more, if ``capped``."""
    capped: bool
    done: int
    refused: int
    refusals: dict[str, int]
    """How many for which reason."""
    place: str | None
    created_by: str
    created_at: datetime
    updated_at: datetime
    finished_at: datetime | None
    cancelled_by: str | None
    cancelled_reason: str | None

    @property
    def over(self) -> bool:
        return self.state != "running"

    @property
    def fraction(self) -> float | None:
        """How far it has come; None where nobody knows how far it is."""
        if self.state == "done":
            return 1.0
        if self.capped or not self.total:
            return None
        return min(1.0, (self.done + self.refused) / self.total)

    @property
    def batch(self) -> int:
        """How many jobs at a time: what the rate allows in about a second."""
        return BATCH if self.rate is None else max(1, min(BATCH, math.floor(self.rate)))


@dataclass(frozen=True, slots=True)
class Starting:
    """An operation about to be started."""

    id: str
    verb: BulkVerb
    reason: str | None = None
    max_retries: int | None = None
    rate: float | None = None


def check_rate(rate: object) -> float | None:
    """Jobs a second; None for as fast as it goes."""
    if rate is None:
        return None
    if isinstance(rate, bool) or not isinstance(rate, int | float) or not LEAST_RATE <= rate <= MOST_RATE:
        raise InvalidSetting("a rate is a number of jobs a second, from 0.001 to 1,000,000", code="invalid_rate")
    return float(rate)


def check_verb(verb: object) -> BulkVerb:
    if verb not in BULK_VERBS:
        raise InvalidSetting(f"a bulk operation is one of {', '.join(BULK_VERBS)}, not {verb!r}", code="unknown_verb")
    return verb
