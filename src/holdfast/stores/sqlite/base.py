"""Common parts of the SQLite operations: signing a write, so that triggers know its actor and time; the dialect; the
clock."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import fields
from datetime import datetime, timedelta
from typing import Any

from holdfast.engine.job import EVERY_TENANT
from holdfast.engine.times import MICROSECOND
from holdfast.errors import StaleLease
from holdfast.stores.codecs import micros
from holdfast.stores.flow import Rows, Statement, Steps, flow
from holdfast.stores.job_reads import Reader
from holdfast.stores.reader import LONGEST_TERM, Dialect
from holdfast.stores.sqlite.codec import NEVER, SqliteCodec

_SIGN = (
    "UPDATE holdfast_clock SET actor = ?, floor = (SELECT coalesce(max(n), 0) FROM holdfast_job_state),"
    " now = coalesce(stopped, CAST((julianday('now') - 2440587.5) * 86400000000 AS INTEGER) + shift) RETURNING now"
)
_SIGN_ENQUEUE = Statement(f"{_SIGN}, (SELECT ruled FROM holdfast_dispatch WHERE id = 1)", (None,))
_UNSIGN = Statement("UPDATE holdfast_clock SET actor = NULL, now = NULL, floor = NULL")


def begin_write(actor: str | None) -> Steps[int]:
    """Begin a write as ``actor``; returns its time."""
    rows = yield Statement(_SIGN, (actor,))
    return int(rows[0][0])


def sign_enqueue() -> Steps[tuple[int, bool]]:
    """``sign`` for an enqueue: returns its time, and whether any rule must be checked (``dispatch``)."""
    rows = yield _SIGN_ENQUEUE
    return int(rows[0][0]), bool(rows[0][1])


def end_write() -> Steps[None]:
    """End a write. A trigger then gives new jobs their state and first event. A flow that signed either ends with this
    or is rolled back."""
    yield _UNSIGN


def write(actor: str | None, text: str, /, **params: Any) -> Steps[Rows]:
    """A write of one statement, which may use ``:actor`` and the time ``:now``; returns its rows."""
    now = yield from begin_write(actor)
    rows = yield Statement(text, {"actor": actor, "now": now, **params})
    yield from end_write()
    return rows


def act_under(lease: str, tenant: str) -> Steps[int]:
    """Sign as the holder of a lease, which must exist in exactly this scope."""
    rows = yield Statement("SELECT holder FROM holdfast_lease WHERE id = ? AND tenant = ?", (lease, tenant))
    if not rows:
        raise StaleLease(f"unknown lease {lease}")
    now = yield from begin_write(rows[0][0])
    return now


def note_action(
    tenant: str, event_type: str, subject: str, name: str, changed: str | None, span: tuple[int, int] | None = None
) -> Steps[None]:
    """Record an action that no trigger can derive from rows. ``span``: first and last number of purged events."""
    yield Statement(
        "INSERT INTO holdfast_action (tenant, at, actor, type, subject, name, changed, first_seq, last_seq)"
        " VALUES (?, (SELECT now FROM holdfast_present), (SELECT actor FROM holdfast_present), ?, ?, ?, ?, ?, ?)",
        (tenant, event_type, subject, name, changed, *(span or (None, None))),
    )


def upsert(table: str, record: type[Any], keep: str, compare: str = "", skip: str = "") -> str:
    """Insert a row with the fields of a record, without those in ``skip``, or else update its columns, except those in
    ``keep``: its key and when it was created. With ``compare``, only if one of these columns differs."""
    names = [field.name for field in fields(record) if field.name not in skip.split()]
    changed = ", ".join(f"{name} = excluded.{name}" for name in names if name not in keep.split())
    text = f"INSERT INTO {table} AS t ({', '.join(names)}) VALUES (:{', :'.join(names)})"
    text += f" ON CONFLICT DO UPDATE SET {changed}"
    columns = compare.split()
    if columns:
        text += f" WHERE (t.{', t.'.join(columns)}) IS NOT (excluded.{', excluded.'.join(columns)})"
    return text


def ids_json(ids: Iterable[object]) -> str:
    """A list as one parameter, for ``IN (SELECT value FROM json_each(?))``."""
    return json.dumps(list(ids))


def any_tenant(tenant: str) -> int:
    return int(tenant == EVERY_TENANT)


NOT_QUARANTINED = "NOT IN (SELECT q.job_id FROM holdfast_quarantine q WHERE q.until > :now)"


class SqlitePart(Reader):
    """The base of the SQLite operations."""

    dialect = Dialect(
        SqliteCodec(),
        "holdfast_",
        percent=False,
        bind=lambda tenant: None,
        has=lambda column, parameter: f"exists (select 1 from json_each({column}) where value = {parameter})",
        nobody="[]",
        listed=ids_json,
        never=NEVER,
        minute=lambda column: f"({column} / 60000000)",
        by_index=lambda name: f" indexed by holdfast_{name}",
        size="length(cast({} as blob))",
        texts="json_array({})",
        searchable="(select case when v.d not like '{{\"$holdfast\"%' and json_valid(v.d) then v.d end"
        " from (select {} as d) v)",
        # In a path, a key with quotation marks or escapes cannot be written: json_each compares it as text.
        key="(select case when json_type(v.d) = 'array' then v.d -> {index} when json_type(v.d) <> 'object' then null"
        " when instr(:{key}, '\"') + instr(:{key}, '\\') = 0 then v.d -> ('$.\"' || :{key} || '\"')"
        " else (select case e.type when 'object' then e.value when 'array' then e.value when 'text' then"
        " json_quote(e.atom) when 'integer' then cast(e.atom as text) when 'real' then cast(e.atom as text)"
        " else e.type end"
        " from json_each(v.d) e where e.key = :{key}) end from (select {above} as d) v)",
        scalar=f"(select case when json_type(v.d) not in ('object', 'array') and length(v.d) <= {LONGEST_TERM}"
        " then v.d end from (select {} as d) v)",
    )


class SqliteClock(SqlitePart):
    @flow(writes=False)
    def now(self) -> Steps[datetime]:
        rows = yield Statement("SELECT now FROM holdfast_present")
        return self.dialect.codec.time(rows[0][0])

    @flow()
    def set(self, shift: timedelta, stopped: datetime | None) -> Steps[None]:
        moment = None if stopped is None else micros(stopped)
        yield from begin_write(None)
        yield Statement("UPDATE holdfast_clock SET shift = ?, stopped = ?", (shift // MICROSECOND, moment))
        yield from end_write()
