"""``store.ledger`` on SQLite: read events in commit order, send application events, record purged events.

SQLite has one writer at a time, so the commit order is the order of the event numbers.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from itertools import groupby
from operator import itemgetter

from holdfast.engine.ids import parse_id
from holdfast.engine.job import Event
from holdfast.engine.payload import canonical, decode_for_display
from holdfast.engine.steps import projection
from holdfast.errors import InvalidInput, NotFound
from holdfast.features.audit.model import Ranges, normalized_json
from holdfast.features.events.model import SentEvent
from holdfast.stores.codecs import Record
from holdfast.stores.flow import Statement, Steps, flow
from holdfast.stores.job_reads import LedgerReads
from holdfast.stores.requests import SendEvent, SentResult
from holdfast.stores.sqlite.base import SqlitePart, any_tenant, begin_write, end_write, ids_json, note_action
from holdfast.stores.sqlite.codec import SqliteCodec
from holdfast.stores.sqlite.registry_checks import refuse_event
from holdfast.stores.sqlite.steps import FULFIL, WAKE, event_value

# Events purged before a cursor was issued are not a gap for its consumer. So once anything was purged, a cursor also
# has the number of the last action at that time.
_PURGED = (
    "SELECT 1 FROM holdfast_action WHERE first_seq IS NOT NULL AND last_seq > 0"  # the conditions of a partial index
)
_SINCE = f"coalesce(';' || (SELECT CASE WHEN EXISTS ({_PURGED}) THEN (SELECT max(seq) FROM holdfast_action) END), '')"
_AFTER = (
    f"SELECT {Record.columns(Event, skip=('cursor',))}, seq || {_SINCE} FROM holdfast_event"
    " WHERE seq > :seq AND (:any OR tenant = :tenant) ORDER BY seq LIMIT :want"
)
_GONE = (
    "SELECT max(coalesce(json_extract(changed, '$.through'), last_seq)) FROM holdfast_action"
    " WHERE first_seq IS NOT NULL AND seq > :since AND last_seq > :seq AND (:any OR tenant = :tenant)"
)
_SENT_AFTER = (
    f"SELECT {Record.columns(SentEvent, skip=('cursor',))}, 'a' || seq FROM holdfast_app_event"
    " WHERE seq > :seq AND (:any OR tenant = :tenant) ORDER BY seq LIMIT :want"
)
_ADD_CURSOR = (
    "INSERT INTO holdfast_consumer (tenant, name, cursor, updated_at) VALUES (:tenant, :name, :cursor, :now)"
    " ON CONFLICT DO NOTHING RETURNING 1"
)
_MOVE_CURSOR = (
    "UPDATE holdfast_consumer SET cursor = :cursor, updated_at = :now"
    " WHERE tenant = :tenant AND name = :name AND cursor = :was RETURNING 1"
)
_CURSOR = re.compile(r"([0-9]{1,18})(?:;([0-9]{1,18}))?")
_SENT_CURSOR = re.compile(r"a[0-9]{1,18}")
_SEND = (
    "INSERT INTO holdfast_app_event (id, tenant, name, data, key, job_id, sent_by, sent_at, cause_id)"
    " VALUES (:id, :tenant, :name, :data, :key, :job, :actor, :now, :cause)"
)
_IN_TENANT = "SELECT 1 FROM holdfast_job_state WHERE id = ? AND tenant = ?"
_SENT_BEFORE = "SELECT id FROM holdfast_app_event WHERE tenant = ? AND name = ? AND key = ?"
_OPEN = "tenant = :tenant AND name = :name AND kind = 'event' AND ended_at IS NULL"
# From shape to shape along the index: there are few shapes, however many jobs wait.
_NEXT_SHAPE = (
    f"SELECT shape FROM holdfast_step INDEXED BY holdfast_waiting WHERE {_OPEN} AND shape > :shape ORDER BY"
    " shape LIMIT 1"
)
_WAITS = (
    f"SELECT job_id, n FROM holdfast_step INDEXED BY holdfast_waiting WHERE {_OPEN} AND shape = :shape AND wanted ="
    " :wanted AND (:job IS NULL OR job_id = :job) ORDER BY job_id, n"
)


class SqliteLedger(SqlitePart, LedgerReads):
    @flow(writes=False)
    def read(self, cursor: str | None, want: int, tenant: str) -> Steps[list[Event]]:
        seq, _ = _parse(cursor)
        rows = yield Statement(_AFTER, {"seq": seq, "any": any_tenant(tenant), "tenant": tenant, "want": want})
        decode = Record.decoder(Event, SqliteCodec())
        return [decode(row) for row in rows]

    @flow(writes=False)
    def gone(self, cursor: str, tenant: str) -> Steps[int | None]:
        seq, since = _parse(cursor)
        params = {"seq": seq, "since": since, "any": any_tenant(tenant), "tenant": tenant}
        rows = yield Statement(_GONE, params)
        through: int | None = rows[0][0]
        return through if through is not None and through > seq else None

    @flow(writes=False)
    def end(self, tenant: str) -> Steps[str]:
        rows = yield Statement(f"SELECT coalesce(max(seq), 0) || {_SINCE} FROM holdfast_event")
        return str(rows[0][0])

    @flow(writes=False)
    def read_sent(self, cursor: str | None, want: int, tenant: str) -> Steps[list[SentEvent]]:
        """Events sent by applications. Their cursors begin with an a, to distinguish them from those of the ledger."""
        if cursor and not _SENT_CURSOR.fullmatch(cursor):
            raise InvalidInput(f"{cursor!r} is not a cursor of application events", code="invalid_cursor")
        seq = int(cursor[1:]) if cursor else 0
        rows = yield Statement(_SENT_AFTER, {"seq": seq, "any": any_tenant(tenant), "tenant": tenant, "want": want})
        decode = Record.decoder(SentEvent, SqliteCodec())
        return [decode(row) for row in rows]

    @flow()
    def save_cursor(self, consumer: str, cursor: str, was: str | None, tenant: str) -> Steps[bool]:
        now = yield from begin_write(None)
        params = {"tenant": tenant, "name": consumer, "cursor": cursor, "now": now}
        if was is None:
            rows = yield Statement(_ADD_CURSOR, params)
        else:
            rows = yield Statement(_MOVE_CURSOR, {**params, "was": was})
        yield from end_write()
        return bool(rows)

    @flow(notifies=True)
    def send(self, event: SendEvent, actor: str, tenant: str) -> Steps[SentResult]:
        if any_tenant(tenant):
            raise InvalidInput("an event must be sent in one tenant")
        now = yield from begin_write(actor)
        name, job = event.name, None if event.job_id is None else parse_id(event.job_id)
        before = [] if event.key is None else (yield Statement(_SENT_BEFORE, (tenant, name, event.key)))
        if before:
            yield from end_write()
            return SentResult(before[0][0], False, 0)
        yield from refuse_event(event, tenant, now)
        if job is not None and not (yield Statement(_IN_TENANT, (job, tenant))):
            raise NotFound(f"no job {job} in tenant {tenant}")
        params = {"id": event.id, "tenant": tenant, "name": name, "data": event.data, "key": event.key, "job": job}
        yield Statement(_SEND, params | {"actor": actor, "now": now, "cause": event.cause_id})
        value = event_value(event.id, name, event.data, actor, now)
        data, woke, shape = decode_for_display(event.data), 0, ""
        while rows := (yield Statement(_NEXT_SHAPE, {"tenant": tenant, "name": name, "shape": shape})):
            shape = rows[0][0]
            wanted = canonical(projection(data, json.loads(shape)))
            waits = yield Statement(
                _WAITS, {"tenant": tenant, "name": name, "shape": shape, "wanted": wanted, "job": job}
            )
            for waiting, n in waits:
                # Suspended jobs are resumed. The others have been queued already and will find the event.
                yield Statement(FULFIL, {"value": value, "now": now, "job": waiting, "n": n})
                woken = yield Statement(WAKE, {"job": waiting, "n": n, "note": json.dumps({"event": name})})
                woke += len(woken)
        yield from end_write()
        return SentResult(event.id, True, woke)


def _parse(cursor: str | None) -> tuple[int, int]:
    """The number of the last event that was read, and that of the last action at that time."""
    if not cursor:
        return 0, 0
    match = _CURSOR.fullmatch(cursor)
    if match is None:
        raise InvalidInput(f"{cursor!r} is not a cursor of this ledger", code="invalid_cursor")
    return int(match[1]), int(match[2] or 0)


_CLEANED = (
    "SELECT e.job_id, e.seq, e.kind, e.from_state, e.attempt, e.at, e.actor, e.meta FROM holdfast_event e"
    " WHERE e.job_id IN (SELECT value FROM json_each(?)) AND e.type = 'clean' ORDER BY e.job_id, e.seq"
)


def record_removed(job_ids: Sequence[str]) -> Steps[int]:
    """Record a purge, within a signed write that then deletes the jobs with their events; returns the number of events.

    There is one action per tenant. It contains the numbers of the events, so that the hash chain can be checked without
    them; the `clean` event of each job, which a check compares with its seal; and the number up to which consumers that
    store their own cursors must have read.
    """
    rows = yield Statement(
        "SELECT tenant, seq, type, job_id FROM holdfast_event WHERE job_id IN (SELECT value FROM json_each(?))"
        " ORDER BY tenant, seq",
        (ids_json(job_ids),),
    )
    cleaned = {
        row[0]: [*row[1:7], normalized_json(row[7]), None] for row in (yield Statement(_CLEANED, (ids_json(job_ids),)))
    }
    for tenant, group in groupby(rows, itemgetter(0)):
        events = list(group)
        numbers = [seq for _, seq, _, _ in events]
        through = max((seq for _, seq, event_type, _ in events if event_type != "clean"), default=0)
        jobs = {job: cleaned[job] for *_, job in events}
        changed = {"events": Ranges.text(numbers), "count": len(numbers), "through": through, "jobs": jobs}
        name = f"{len(jobs)} jobs"
        yield from note_action(tenant, "purge", "ledger", name, json.dumps(changed), (numbers[0], numbers[-1]))
    return len(rows)
