"""Seals on SQLite. SQLite has no SHA-256, so this module computes the digests, outside of the write lock."""

from __future__ import annotations

import json
from collections.abc import Sequence

from holdfast.engine.ids import parse_id
from holdfast.features.audit.model import (
    ACTION_FIELDS,
    EVENT_FIELDS,
    FIRST_BATCH,
    GENESIS,
    Item,
    Seal,
    Sealed,
    content_digest,
    digest_of,
    is_envelope,
    leaf,
    leaves,
    next_batch,
    normalized_json,
)
from holdfast.features.audit.store import AuditReads
from holdfast.stores.codecs import Record, from_micros
from holdfast.stores.flow import Flow, Row, Statement, Steps, flow
from holdfast.stores.sqlite.base import SqlitePart, any_tenant

_EVENT = "e.seq, e.job_id, e.tenant, e.kind, e.type, e.from_state, e.to_state, e.attempt, e.at, e.actor, e.meta, NULL"
_ACTION = "e.seq, e.tenant, e.at, e.actor, e.type, e.subject, e.name, e.changed, e.first_seq, e.last_seq, NULL"
_LAST = "SELECT number, digest, floor, action_floor FROM holdfast_seal ORDER BY number DESC LIMIT 1"
_FRESH = "SELECT {fields} FROM holdfast_{table} e WHERE e.seq > ? ORDER BY e.seq LIMIT ?"
# Another process may have sealed between the draft and the write lock; then this is no longer the next block.
_ADD = (
    f"INSERT INTO holdfast_seal ({Record.columns(Seal)}) SELECT {', '.join(':' + name for name in Seal.__slots__)}"
    " WHERE coalesce((SELECT max(number) FROM holdfast_seal), 0) = :number - 1 RETURNING 1"
)
_PAYLOADS = (
    "SELECT e.seq, e.job_id, j.payload FROM json_each(?) w JOIN holdfast_event e ON e.seq = w.value"
    " JOIN holdfast_job j ON j.id = e.job_id WHERE e.type = 'enqueue'"
)
_RESULTS = (
    "SELECT e.seq, e.job_id, r.value, r.ref FROM json_each(?) w JOIN holdfast_event e ON e.seq = w.value"
    " JOIN holdfast_result r ON r.job_id = e.job_id WHERE e.type = 'succeed'"
)
_HOLDING = (
    "SELECT number, sealed_at, events FROM holdfast_seal WHERE last_seq >= :seq AND first_seq <= :seq ORDER BY"
    " last_seq LIMIT 1"
)


class SqliteAudit(SqlitePart, AuditReads):
    _event_fields = _EVENT
    _action_fields = _ACTION
    _sealed_at = "s.sealed_at"
    _newest = "SELECT max(e.seq) FROM {event} e"
    _among = "IN (SELECT CAST(value AS INTEGER) FROM json_each(:late))"
    _jobs = "IN (SELECT value FROM json_each(:jobs))"

    @staticmethod
    def _item(row: Row) -> Item:
        """Normalize the JSON document. SQLite stores documents as they were written."""
        column = _DOCUMENT[len(row)]
        if row[column] is None:
            return tuple(row)
        return (*row[:column], normalized_json(row[column]), *row[column + 1 :])

    def seal(self, version: str, want: int = 2000) -> Flow[int]:
        drafted: list[Seal] = []

        def draft() -> Steps[int | None]:
            drafted[:] = yield from self._draft(version, want)
            return None if drafted else 0

        def seal_ledger() -> Steps[int]:  # a flow is named after its function
            (seal,) = drafted
            rows = yield Statement(_ADD, {name: getattr(seal, name) for name in Seal.__slots__})
            return seal.event_count + seal.action_count if rows else 0

        return Flow(seal_ledger, peek=draft)

    def _draft(self, version: str, want: int) -> Steps[list[Seal]]:
        last = yield Statement(_LAST)
        number, digest, floor, action_floor = last[0] if last else (0, GENESIS, 0, 0)
        events = yield Statement(_FRESH.format(fields=_EVENT, table="event"), (floor, want))
        actions = yield Statement(_FRESH.format(fields=_ACTION, table="action"), (action_floor, want))
        if not events and not actions:
            return []
        contents = yield from self._sealed_contents([row[0] for row in events if row[4] in ("enqueue", "succeed")])
        ((now,),) = yield Statement("SELECT now FROM holdfast_present")
        seal = Seal(
            number=number + 1,
            previous=digest,
            digest="",
            events=self._leaves("event", events),
            actions=self._leaves("action", actions),
            event_count=len(events),
            action_count=len(actions),
            first_seq=events[0][0] if events else None,
            last_seq=events[-1][0] if events else None,
            floor=events[-1][0] if events else floor,
            action_floor=actions[-1][0] if actions else action_floor,
            base=0,
            snapshot=None,
            sealed_at=now,
            version=version,
            xid=None,
            contents=contents,
            cut=int(len(events) >= want),
        )
        return [seal.with_digest()]

    def _sealed_contents(self, numbers: Sequence[int]) -> Steps[bytes]:
        """The digests of the payloads and results of these events' jobs, read in parts because they may be large."""
        digests: dict[int, bytes] = {}
        start, size = 0, FIRST_BATCH
        while start < len(numbers):
            batch, characters = json.dumps(numbers[start : start + size]), 0
            for text, what in ((_PAYLOADS, "payload"), (_RESULTS, "result")):
                for seq, job_id, *texts in (yield Statement(text, (batch,))):
                    digest = content_digest(what, job_id, *texts)
                    digests[seq] = leaf(-seq if is_envelope(texts[0]) else seq, digest)
                    characters += len(texts[0] or "")
            start, size = start + size, next_batch(size, characters)
        return b"".join(digests[seq] for seq in sorted(digests))

    def _leaves(self, what: str, rows: Sequence[Row]) -> bytes:
        return b"".join([leaf(row[0], digest_of(what, self._item(row))) for row in rows])

    @flow(writes=False)
    def sealed(self, job_id: str, tenant: str) -> Steps[list[Sealed]]:
        rows = yield Statement(
            "SELECT seq FROM holdfast_event WHERE job_id = ? AND (? OR tenant = ?) ORDER BY seq",
            (parse_id(job_id), any_tenant(tenant), tenant),
        )
        result = []
        for (seq,) in rows:
            for number, sealed_at, block in (yield Statement(_HOLDING, {"seq": seq})):
                digest = dict(leaves(block)).get(seq)
                if digest is not None:
                    result.append(Sealed(seq, number, from_micros(sealed_at), digest.hex()))
        return result


# The position of the JSON document in a row, by the row's length: `meta` of an event, `changed` of an action.
_DOCUMENT = {len(EVENT_FIELDS): EVENT_FIELDS.index("meta"), len(ACTION_FIELDS): ACTION_FIELDS.index("changed")}
