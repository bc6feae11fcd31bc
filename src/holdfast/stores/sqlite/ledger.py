"""Reading the ledger in commit order. SQLite has one writer at a time, so that is the order of the numbers."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from itertools import groupby
from operator import itemgetter

from holdfast.engine.job import Event
from holdfast.errors import InvalidInput
from holdfast.features.audit.model import (
    Ranges,
    normal,
)
from holdfast.features.events.model import SentEvent
from holdfast.stores.codecs import Record
from holdfast.stores.flow import Statement, Steps, flow
from holdfast.stores.job_reads import LedgerReads
from holdfast.stores.sqlite.base import SqlitePart, any_tenant, ids_json, note_action, sign, unsign
from holdfast.stores.sqlite.codec import SqliteCodec
from holdfast.stores.sqlite.steps import SqliteSending

# What was purged before a cursor was given out is no gap to whoever goes on from it: where anything ever was, a cursor
# also has the number of the last action at that moment.
_PURGED = "SELECT 1 FROM action WHERE first_seq IS NOT NULL AND last_seq > 0"  # which has an index, and begins there
_SINCE = f"coalesce(';' || (SELECT CASE WHEN EXISTS ({_PURGED}) THEN (SELECT max(seq) FROM action) END), '')"
_AFTER = (
    f"SELECT {Record.columns(Event, skip=('cursor',))}, seq || {_SINCE} FROM event"
    " WHERE seq > :seq AND (:any OR tenant = :tenant) ORDER BY seq LIMIT :want"
)
_GONE = (
    "SELECT max(coalesce(json_extract(changed, '$.through'), last_seq)) FROM action"
    " WHERE first_seq IS NOT NULL AND seq > :since AND last_seq > :seq AND (:any OR tenant = :tenant)"
)
_TOLD_AFTER = (
    f"SELECT {Record.columns(SentEvent, skip=('cursor',))}, 'a' || seq FROM app_event"
    " WHERE seq > :seq AND (:any OR tenant = :tenant) ORDER BY seq LIMIT :want"
)
_ADD_CURSOR = (
    "INSERT INTO consumer (tenant, name, cursor, updated_at) VALUES (:tenant, :name, :cursor, :now)"
    " ON CONFLICT DO NOTHING RETURNING 1"
)
_MOVE_CURSOR = (
    "UPDATE consumer SET cursor = :cursor, updated_at = :now"
    " WHERE tenant = :tenant AND name = :name AND cursor = :was RETURNING 1"
)
_CURSOR = re.compile(r"([0-9]{1,18})(?:;([0-9]{1,18}))?")
_TOLD_CURSOR = re.compile(r"a[0-9]{1,18}")


class SqliteLedger(SqlitePart, SqliteSending, LedgerReads):
    @flow(writes=False)
    def read(self, cursor: str | None, want: int, tenant: str) -> Steps[list[Event]]:
        seq, _ = _place(cursor)
        rows = yield Statement(_AFTER, {"seq": seq, "any": any_tenant(tenant), "tenant": tenant, "want": want})
        decode = Record.decoder(Event, SqliteCodec())
        return [decode(row) for row in rows]

    @flow(writes=False)
    def gone(self, cursor: str, tenant: str) -> Steps[int | None]:
        seq, since = _place(cursor)
        params = {"seq": seq, "since": since, "any": any_tenant(tenant), "tenant": tenant}
        rows = yield Statement(_GONE, params)
        through: int | None = rows[0][0]
        return through if through is not None and through > seq else None

    @flow(writes=False)
    def end(self, tenant: str) -> Steps[str]:
        rows = yield Statement(f"SELECT coalesce(max(seq), 0) || {_SINCE} FROM event")
        return str(rows[0][0])

    @flow(writes=False)
    def read_sent(self, cursor: str | None, want: int, tenant: str) -> Steps[list[SentEvent]]:
        """What applications told. Its cursors begin with an a, so that neither is taken for the other."""
        if cursor and not _TOLD_CURSOR.fullmatch(cursor):
            raise InvalidInput(f"{cursor!r} is not a cursor of application events", code="invalid_cursor")
        seq = int(cursor[1:]) if cursor else 0
        rows = yield Statement(_TOLD_AFTER, {"seq": seq, "any": any_tenant(tenant), "tenant": tenant, "want": want})
        decode = Record.decoder(SentEvent, SqliteCodec())
        return [decode(row) for row in rows]

    @flow()
    def save_cursor(self, consumer: str, cursor: str, was: str | None, tenant: str) -> Steps[bool]:
        now = yield from sign(None)
        params = {"tenant": tenant, "name": consumer, "cursor": cursor, "now": now}
        if was is None:
            rows = yield Statement(_ADD_CURSOR, params)
        else:
            rows = yield Statement(_MOVE_CURSOR, {**params, "was": was})
        yield from unsign()
        return bool(rows)


def _place(cursor: str | None) -> tuple[int, int]:
    """The number of the last event that was read, and of the last action when it was."""
    if not cursor:
        return 0, 0
    found = _CURSOR.fullmatch(cursor)
    if found is None:
        raise InvalidInput(f"{cursor!r} is not a cursor of this ledger", code="invalid_cursor")
    return int(found[1]), int(found[2] or 0)


_CLEANED = (
    "SELECT e.job_id, e.seq, e.kind, e.from_state, e.attempt, e.at, e.actor, e.meta FROM event e"
    " WHERE e.job_id IN (SELECT value FROM json_each(?)) AND e.type = 'clean' ORDER BY e.job_id, e.seq"
)


def record_removed(job_ids: Sequence[str]) -> Steps[int]:
    """For a purge, just before it deletes jobs with their events, in a flow that has signed. The action keeps the
    numbers of the events, so that the chain holds without them, and for each job the event that says it was cleaned: a
    check compares it with its seal. One action for each tenant, with the number through which consumers that keep their
    own place must have read. Answers how many events there were."""
    rows = yield Statement(
        "SELECT tenant, seq, type, job_id FROM event WHERE job_id IN (SELECT value FROM json_each(?))"
        " ORDER BY tenant, seq",
        (ids_json(job_ids),),
    )
    cleaned = {row[0]: [*row[1:7], normal(row[7]), None] for row in (yield Statement(_CLEANED, (ids_json(job_ids),)))}
    for tenant, those in groupby(rows, itemgetter(0)):
        events = list(those)
        numbers = [seq for _, seq, _, _ in events]
        through = max((seq for _, seq, event_type, _ in events if event_type != "clean"), default=0)
        jobs = {job: cleaned[job] for *_, job in events}
        told = {"events": Ranges.text(numbers), "count": len(numbers), "through": through, "jobs": jobs}
        name = f"{len(jobs)} jobs"
        yield from note_action(tenant, "purge", "ledger", name, json.dumps(told), (numbers[0], numbers[-1]))
    return len(rows)
