"""Retention policies and usage sums.

A policy names a tenant, a kind and a state, each of which may be ``*``. It says how long after its end a job is
*cleaned* (its contents are deleted, its tombstone and its ledger stay) and *purged* (deleted completely). Only the most
specific policy applies; without one, a job is kept for ever. The state ``*`` does not include dead letters, because
they still need a decision: only a policy that names them removes them.
"""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import Annotated, Final, Literal, TypedDict, get_args

from holdfast.engine.declared import Help
from holdfast.engine.names import NamedKind, check_name
from holdfast.engine.times import instant
from holdfast.engine.units import Duration, seconds
from holdfast.errors import InvalidSetting

ANY: Final = "*"
End = Literal["succeeded", "failed", "cancelled", "dead_letter"]
ENDS: Final = get_args(End)
"""The states that a policy can name; ``*`` means the first three."""

Pass = Literal["clean", "purge", "prune", "delete", "idle"]
"""``prune``: bookkeeping; ``delete``: orphaned files of cleaned jobs in the artifact store."""


@dataclass(frozen=True, slots=True)
class Retention:
    """A retention policy in seconds after the end of a job; None means forever. ``declared`` policies come from
    code."""

    tenant: str
    kind: str
    state: str
    clean_after: float | None
    purge_after: float | None
    archive: bool
    """Jobs stay until they are archived."""
    declared: bool
    set_by: str
    created_at: datetime
    updated_at: datetime


class RetentionTarget(TypedDict, total=False):
    """The jobs of a policy."""

    kind: Annotated[str | NamedKind | None, Help("Only jobs of this kind.", "NAME")]
    state: Annotated[End | None, Help("Only jobs that ended in this state; default: all but dead letters.", "STATE")]


class RetentionOptions(RetentionTarget, total=False):
    """The jobs of a policy, and how long they are kept after their end."""

    clean_after: Annotated[
        Duration | None, Help("Remove payload, result, checkpoint and logs; tombstone and ledger stay.", "SPAN")
    ]
    purge_after: Annotated[Duration | None, Help("Remove the job together with its ledger.", "SPAN")]
    archive: Annotated[bool, Help("Keep jobs until they are archived.")]


@dataclass(frozen=True, slots=True)
class RetentionRule:
    """A complete, checked policy that is about to be stored."""

    kind: str = ANY
    state: str = ANY
    clean_after: float | None = None
    purge_after: float | None = None
    archive: bool = False
    declared: bool = False

    @classmethod
    def of(
        cls,
        kind: str | NamedKind | None = None,
        state: str | None = None,
        clean_after: Duration | None = None,
        purge_after: Duration | None = None,
        archive: bool = False,
        declared: bool = False,
    ) -> RetentionRule:
        """Check the options of a policy. Without an age, jobs are kept that a wider policy would remove."""
        clean = None if clean_after is None else seconds(clean_after, "clean_after")
        purge = None if purge_after is None else seconds(purge_after, "purge_after")
        if clean is not None and purge is not None and purge < clean:
            raise InvalidSetting("clean_after must be shorter than purge_after", code="invalid_retention")
        if not isinstance(archive, bool):
            raise InvalidSetting(f"archive must be True or False, not {archive!r}"[:200], code="invalid_retention")
        name = ANY if kind is None else check_name(kind, "kind")
        return cls(name, check_state(state), clean, purge, archive, declared)


@dataclass(frozen=True, slots=True)
class SweepResult:
    """One slice of a sweep: the number of jobs that were read (``looked``), that were removed (``done``), and that were
    due but held back (``held``) because the reader ``held_by`` has not read their events. ``more``: the pass is not at
    its end."""

    action: Pass
    looked: int
    done: int
    held: int
    held_by: str | None
    more: bool


IDLE: Final = SweepResult("idle", 0, 0, 0, None, False)
"""No pass was due."""


@dataclass(frozen=True, slots=True)
class Preview:
    """What one policy would remove now. Counts end at a limit (``capped``); ``oldest_at`` is the earliest end of these
    jobs. A preview with the action ``delete`` belongs to no policy: it counts orphaned files that are still stored."""

    tenant: str
    kind: str
    state: str
    action: Pass
    due: int
    capped: bool
    oldest_at: datetime | None
    held: int
    held_by: str | None


def check_state(state: str | None) -> str:
    if state is None or state == ANY:
        return ANY
    if state not in ENDS:
        raise InvalidSetting(
            f"{state!r} is not a state of retention policies",
            code="invalid_retention",
            fix=f"Use one of {', '.join(ENDS)}, or * for the first three.",
        )
    return state


By = Literal["day", "kind", "tenant"]
GROUPS: Final[tuple[By, ...]] = ("tenant", "kind", "day")
MILLION: Final = 1_000_000
MAX_COST: Final = 1e9
"""Units of one attempt. Sums are stored as whole numbers of millionths, so they are exact."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Usage of one group; fields it is not grouped by are None. ``failed`` and ``crashed`` count attempts, the
    others count jobs; ``expired`` jobs were denied or passed their deadline before they started. Times are in
    seconds."""

    tenant: str | None
    kind: str | None
    day: date | None
    enqueued: int
    started: int
    succeeded: int
    failed: int
    crashed: int
    dead: int
    cancelled: int
    expired: int
    run_time: float
    wait_time: float
    cost: float


COUNTS: Final = ("enqueued", "started", "succeeded", "failed", "crashed", "dead", "cancelled", "expired")


def check_groups(by: object) -> tuple[By, ...]:
    """Check the groups of a report: ``"day"``, ``("kind", "day")``, or nothing for one sum. Returns each once, in the
    order of ``GROUPS``."""
    names = (by,) if isinstance(by, str) else tuple(by) if isinstance(by, (list, tuple, set, frozenset)) else (by,)
    unknown = [name for name in names if name not in GROUPS]
    if unknown:
        raise InvalidSetting(
            f"usage can be grouped by {', '.join(GROUPS)}, not by {unknown[0]!r}",
            code="invalid_usage",
            fix='For example by="day".',
        )
    return tuple(group for group in GROUPS if group in names)


def check_day(value: object, today: datetime) -> date | None:
    """Check a day: a date, a time (its day in UTC), text such as ``2027-01-31``, or a number of days before today, as
    text also ``30d``."""
    if value is None:
        return None
    if isinstance(value, datetime):
        return instant(value, "the day").date()
    if isinstance(value, date):
        return value
    if isinstance(value, str):
        if (days := value.removesuffix("d")).isdecimal() and len(days) < 6:
            value = int(days)
        else:
            with suppress(ValueError):
                return instant(at, "the day").date() if (at := datetime.fromisoformat(value)).tzinfo else at.date()
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= 36_600:
        return (today - timedelta(days=value)).date()
    raise InvalidSetting(f"{value!r} is not a day", code="invalid_usage", fix="For example 2027-01-31.")


def check_cost(units: object) -> float:
    """Check a cost. Rounded to six decimals, so that the stored number is exact."""
    if not isinstance(units, (int, float)) or isinstance(units, bool) or not math.isfinite(units):
        raise InvalidSetting(f"a cost must be a number, not {units!r}", code="invalid_cost")
    if not 0 <= units <= MAX_COST:
        raise InvalidSetting(f"a cost must be from 0 to {MAX_COST:,.0f}, not {units!r}", code="invalid_cost")
    return round(float(units), 6)


PREVIEWED = 10_000
"""Jobs that a preview reads for each policy."""


@dataclass(frozen=True, slots=True)
class OrphanedFile:
    """An orphaned file: a file in the artifact store or on a host that no job needs any more."""

    tenant: str
    job_id: str
    ref: str
