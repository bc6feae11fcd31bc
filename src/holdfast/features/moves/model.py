"""What is moved, and how values are converted between the stores.

The tables and columns come from the catalogues of both databases. A table or a column that only one store has must be
named here: what is not named stops the check, and a test.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Literal

from holdfast.engine.times import EPOCH, MICROSECOND
from holdfast.errors import Conflict, InvalidSetting, SchemaMismatch

STAY: Final = {
    "migration": "each database has its own",
    "installed": "each database has its own",
    "mutex": "rows that are only locked",
    "event_partition": "the target has its own partitions",
    "owed": "empty between statements",
    "moved": "empty between transactions",
    "ready": "empty between transactions",
    "round": "empty between transactions",
    "watch": "callers that wait for a job watch it again",
    "tenant_load": "waiting jobs are counted again",
    "pending_change": "waiting jobs are counted again",
}
"""Tables that are not moved, and why. So are those that are only locked (``lock_…``)."""
ONE_STORE: Final = {
    "login_pin": "logins belong to PostgreSQL",
    "unsure_wait": "answered before the switch",
}
"""Tables that are moved only if both databases have them."""
FILLED: Final = {
    "app_event.xid": "0",
    "dispatch.capped": "exists (select from tenant t where t.max_pending is not null)",
    "dispatch.signal_key": "gen_random_uuid()::text",
    "dispatch.payload_salt": "gen_random_uuid()::text",
    "ledger_epoch.anchor": "0",
    "ledger_epoch.place": "0",
    "ledger_epoch.timeline": "''",
}
"""Columns of PostgreSQL that SQLite does not have, and their values after a move from there."""
OWN: Final = frozenset({"job.n", "job_state.n", "clock.floor", "clock.now", "clock.actor"})
"""Columns of SQLite that it fills itself."""
NO_POSITION: Final = frozenset({"event.xid", "action.xid"})
"""The transaction that wrote a row: null on SQLite and 0 on PostgreSQL if the row comes from SQLite."""

Kind = Literal["sqlite", "postgres"]
Key = tuple[Any, ...]
Row = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Shape:
    """A table as one database describes it."""

    columns: Mapping[str, str]
    """The type of each column."""
    key: tuple[str, ...]
    """The columns that identify a row; empty if there are none."""


@dataclass(frozen=True, slots=True)
class Table:
    """A table that is moved."""

    name: str
    columns: tuple[str, ...]
    """Those that both databases have, in the order of the source."""
    types: Mapping[str, str]
    """The types of PostgreSQL, or of SQLite if no database is PostgreSQL."""
    key: tuple[str, ...]
    """The key in the source."""
    target_key: tuple[str, ...]
    filled: tuple[str, ...] = ()
    """Columns that only the target has, with values of ``FILLED``."""

    @property
    def large(self) -> list[str]:
        """The columns that may have large values."""
        return [each for each in self.columns if self.types[each] in ("json", "bytea") or each in _LARGE]


def tables(source: Mapping[str, Shape], target: Mapping[str, Shape], types_of: Literal[0, 1]) -> list[Table]:
    """The tables to move, in the order in which their rows can be stored. ``types_of``: whose types the rows have."""
    found, unknown = [], []
    for name in sorted(source.keys() | target.keys(), key=lambda name: (_FIRST.get(name, 1), name)):
        if name in STAY or name.startswith("lock_"):
            continue
        here, there = source.get(name), target.get(name)
        if here is None or there is None:
            unknown += [name] * (name not in ONE_STORE)
            continue
        only = [f"{name}.{column}" for column in here.columns.keys() ^ there.columns.keys()]
        unknown += [each for each in only if each not in FILLED and each not in OWN]
        unknown += [name] * (not here.key or not there.key)
        columns = tuple(column for column in here.columns if column in there.columns and f"{name}.{column}" not in OWN)
        missing = [column for column in there.columns if column not in here.columns and f"{name}.{column}" in FILLED]
        types = (here, there)[types_of].columns
        found.append(Table(name, columns, types, here.key, there.key, tuple(sorted(missing))))
    if unknown:
        raise SchemaMismatch(
            f"a move does not know what to do with {', '.join(sorted(unknown)[:10])}",
            code="move_unknown_table",
            fix="Both databases must have the tables of this release: holdfast migrate.",
        )
    return found


_LARGE = ("payload", "value", "lines", "data", "document", "events", "contents")
_FIRST = {"job": 0}
"""The rows of job_state have the numbers of their jobs on SQLite."""


@dataclass(frozen=True, slots=True)
class Phases:
    """The phases, as an operator sees them."""

    CHECK: str = "check"
    COPY: str = "copy"
    COMPARE: str = "compare"
    FOLLOW: str = "follow"
    SWITCH: str = "switch"
    VERIFY: str = "verify"
    FINISH: str = "finish"


PHASE: Final = Phases()


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far a phase is."""

    phase: str
    done: int = 0
    total: int | None = None
    """About as many rows there are."""
    seconds: float = 0.0
    """Since the phase began in this process."""
    before: int = 0
    """Of ``done``, what an earlier process had copied."""

    @property
    def rate(self) -> float:
        """Rows per second."""
        return (self.done - self.before) / self.seconds if self.seconds > 0 else 0.0

    @property
    def left(self) -> float | None:
        """Seconds left, by the rate so far."""
        if not self.total or self.rate <= 0:
            return None
        return max(0, self.total - self.done) / self.rate


Report = Callable[[Progress], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """What a move would do."""

    rows: Mapping[str, int]
    """Rows of each table, about."""
    seconds: float
    """How long copying takes, about."""
    target_exists: bool


@dataclass(slots=True, kw_only=True)
class MoveResult:
    """What a move has done."""

    id: str
    target: str
    rows: dict[str, int] = field(default_factory=dict)
    """Rows of each table."""
    tenants: dict[str, int] = field(default_factory=dict)
    """Jobs of each tenant."""
    copied: int = 0
    """Rows copied by this process, before changes were followed."""
    copy_seconds: float = 0.0
    compared: int = 0
    refused_seconds: float = 0.0
    """How long writers were refused."""
    verified: str | None = None
    """The newest seal that was verified in the target; None if that was left out."""


@dataclass(frozen=True, slots=True)
class Mark:
    """What one of the two databases says about a move."""

    id: str
    other: str
    """The URL of the other database, without a password."""
    owner: str
    phase: str
    """Source: ``copying``, ``refusing``. Target: ``receiving``, ``open``, ``closed``."""
    progress: Mapping[str, Any]


def not_moving() -> Conflict:
    return Conflict(
        "no move between these databases is under way",
        code="move_unknown",
        fix="Name the source and the target of the move that was begun, or begin one without --resume.",
    )


def under_way(mark: Mark) -> Conflict:
    return Conflict(
        f"a move between this database and {mark.other} is under way",
        code="move_under_way",
        fix="Continue it with --resume, or give it up with --abort.",
    )


def taken_over() -> Conflict:
    return Conflict(
        "another process continues or has given up this move",
        code="move_taken_over",
        fix="Let it end, or take the move over again with --resume.",
    )


def not_empty(what: str) -> InvalidSetting:
    return InvalidSetting(
        f"the target is not empty: {what}",
        code="move_target_not_empty",
        fix="Move into a new file, or into a database or schema without jobs and settings.",
    )


# --- values ---
#
# Between two stores a row is a tuple of the values as SQLite keeps them, or of values that COPY of PostgreSQL reads.

_READ_AS_SQLITE: Final = {
    "timestamp with time zone": "(extract(epoch from {0}) * 1000000)::bigint",
    "interval": "(extract(epoch from {0}) * 1000000)::bigint",
    "boolean": "{0}::integer",
    "text[]": "array_to_json({0})::text",
    **dict.fromkeys(("uuid", "json", "jsonb", "date", "state"), "{0}::text"),
}
"""Expressions of PostgreSQL for the value that SQLite keeps, by type."""
NO_ID: Final = "00000000-0000-0000-0000-000000000000"
"""Before all ids. SQLite keeps it as an empty text."""
_READ_AS_POSTGRES: Final = {
    # A time that cannot be converted must not become null.
    "timestamp with time zone": "CASE WHEN {0} IS NOT NULL THEN coalesce("
    "strftime('%Y-%m-%d %H:%M:%S', {0} / 1000000 - ({0} % 1000000 < 0), 'unixepoch')"
    " || printf('.%06d+00', ({0} % 1000000 + 1000000) % 1000000), 'bad ' || {0}) END",
    "interval": "{0} || ' microseconds'",
    "uuid": f"CASE {{0}} WHEN '' THEN '{NO_ID}' ELSE {{0}} END",
    "text[]": "CASE WHEN {0} IS NOT NULL THEN (SELECT '{{' || coalesce(group_concat("
    "'\"' || replace(replace(value, '\\', '\\\\'), '\"', '\\\"') || '\"', ','), '') || '}}'"
    " FROM (SELECT value FROM json_each({0}) ORDER BY key)) END",
}
"""Expressions of SQLite for the text that PostgreSQL reads, by type."""


CONVERTED: Final = {*_READ_AS_SQLITE, *_READ_AS_POSTGRES}
"""Types of PostgreSQL whose values SQLite keeps in another form."""


def expression(table: Table, column: str, source: Kind, target: Kind, quoted: str) -> str:
    """How to read a column of the source, so that the target can store it."""
    if source == target:
        return quoted
    kind = table.types[column]
    known = _READ_AS_SQLITE if source == "postgres" else _READ_AS_POSTGRES
    read = known.get(kind, "{0}").format(quoted)
    if f"{table.name}.{column}" in NO_POSITION:
        return f"nullif({read}, 0)" if source == "postgres" else f"coalesce({read}, 0)"
    return read


def normal(table: Table, row: Row) -> list[Any]:
    """The values of a row as SQLite keeps them, in one form: the stores write documents in different ways."""
    values: list[Any] = []
    for column, value in zip(table.columns, row, strict=True):
        kind = table.types[column]
        if value is not None and kind in ("json", "jsonb", "text[]"):
            value = json.loads(value)
        values.append(NO_ID if kind == "uuid" and value == "" else value)
    return values


def key_value(kind: str, value: Any, source: Kind, target: Kind) -> Any:
    """A value of a key, as JSON has it in a note of the source, for the target."""
    if source == target or value is None:
        return value
    if kind == "boolean":
        return bool(value) if target == "postgres" else int(value)
    if kind == "timestamp with time zone":
        if target == "postgres":
            return (EPOCH + timedelta(microseconds=value)).isoformat()
        return (datetime.fromisoformat(value).astimezone(UTC) - EPOCH) // MICROSECOND
    return value
