"""Seals over the ledger and actions of operators: port, shared reads and PostgreSQL."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import groupby
from operator import itemgetter
from typing import Any, ClassVar, Literal

from typing_extensions import override

from holdfast.engine.ids import parse_id
from holdfast.engine.job import Event
from holdfast.features.audit.model import (
    FIRST_BATCH,
    Action,
    Item,
    Purged,
    Ranges,
    Seal,
    Sealed,
    content_digest,
    digest_of,
    is_envelope,
    leaves,
    next_batch,
)
from holdfast.features.audit.verification import Block, Content, Proof, Stray, Tail, Trail
from holdfast.stores.codecs import Record
from holdfast.stores.flow import Row, Steps, flow
from holdfast.stores.job_reads import EVENT_COLUMNS, Reader
from holdfast.stores.postgres.base import Calls
from holdfast.stores.reader import within


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionFilter:
    """Which actions to list, newest first; ``before`` is the number of the last action of the previous page."""

    tenant: str
    subject: str | None = None
    name: str | None = None
    actor: str | None = None
    type: str | None = None
    since: datetime | None = None
    before: int | None = None
    limit: int = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class EventFilter:
    """Which events of the ledger to list, newest first; ``before`` is the number at which the previous page ended."""

    tenant: str
    kind: str | None = None
    actor: str | None = None
    type: str | None = None
    since: datetime | None = None
    before: int | None = None
    limit: int = 50


@dataclass(frozen=True, slots=True)
class EventPage:
    """Matching events, and the ``before`` of the next page; None if there are no earlier events."""

    events: list[Event]
    before: int | None


EVERY = "*"
LOWEST = -(2**63)
EVENTS_SCANNED = 50_000
"""Event numbers that one page scans."""
MAX_STRAYS = 100
"""Stray rows of each sort that are reported."""
# The complete histories of the jobs whose first event is in a range. One statement, so that the events and the states
# are of the same moment.
_TRAILS = (
    "select e.job_id, s.state, e.seq, e.type, e.from_state, e.to_state,"
    " s.tenant = e.tenant and s.kind = e.kind and j.tenant = e.tenant and j.kind = e.kind"
    " and (e.type <> 'enqueue' or j.enqueued_by = e.actor)"
    " from {event} e left join {job_state} s on s.id = e.job_id left join {job} j on j.id = e.job_id"
    " where e.job_id in (select b.job_id from {event} b where b.seq > :low and b.seq <= :high"
    " and not exists (select 1 from {event} p where p.job_id = b.job_id and p.seq < b.seq))"
    " order by e.job_id, e.seq"
)
PAYLOADS = (
    "select e.seq, e.job_id, s.state, cast(j.payload as text), cast((select r.meta from {event} r"
    " where r.job_id = e.job_id and r.type = 'replace' order by r.seq desc limit 1) as text)"
    " from {event} e left join {job} j on j.id = e.job_id"
    " left join {job_state} s on s.id = e.job_id where e.type = 'enqueue' and e.seq "
)
_RESULTS = (
    "select e.seq, e.job_id, s.state, cast(r.value as text), r.ref from {event} e"
    " left join {result} r on r.job_id = e.job_id and r.tenant = e.tenant"
    " left join {job_state} s on s.id = e.job_id where e.type = 'succeed' and e.seq "
)
_STRAYS = {
    "has a state and no event": "select s.id from {job_state} s"
    " where not exists (select 1 from {event} e where e.job_id = s.id)",
    "has a state and no job row": "select s.id from {job_state} s"
    " where not exists (select 1 from {job} j where j.id = s.id)",
    "has a job row and no state": "select j.id from {job} j"
    " where not exists (select 1 from {job_state} s where s.id = j.id)",
    "has a result and has not succeeded": "select r.job_id from {result} r"
    " where not exists (select 1 from {job_state} s where s.id = r.job_id and s.state = 'succeeded')",
}
_ALIVE = " union ".join(
    f"select {column} from {{{table}}} where {column} {{among}}"
    for table, column in (("job", "id"), ("job_state", "id"), ("event", "job_id"), ("result", "job_id"))
)
_RESEALED = "select a.changed from {action} a where a.type = 'reseal' and a.name = :name order by a.seq"


class AuditReads(Reader):
    # Column lists that return the values in the form in which they are hashed.
    _event_fields: ClassVar[str]
    _action_fields: ClassVar[str]
    _sealed_at: ClassVar[str]
    _among: ClassVar[str]
    _jobs: ClassVar[str]
    """Condition: the job is in the list ``jobs``."""
    _newest: ClassVar[str]

    @staticmethod
    def _item(row: Row) -> Item:
        return tuple(row)

    @flow(writes=False)
    def get_seal(self, number: int | None = None) -> Steps[Seal | None]:
        """The seal with this number, or the newest."""
        which = "1 = 1" if number is None else "s.number = :number"
        return (yield from self._seal(f"where {which} order by s.number desc limit 1", number=number))

    @flow(writes=False)
    def block(self, after: Seal | None) -> Steps[Block | None]:
        # Numbers begin at 1. The first block starts below, so that it includes inserted rows with lower numbers.
        """The next seal with the rows of its range; None at the end of the chain."""
        start = (0, LOWEST, LOWEST) if after is None else (after.number, after.floor, after.action_floor)
        number, floor, action_floor = start
        seal = yield from self._seal("where s.number > :number order by s.number limit 1", number=number)
        if seal is None or not seal.is_intact():  # the range of an edited seal is unknown
            return None if seal is None else Block(seal, (), (), ())
        if seal.number != number + 1 or (after is not None and not after.is_intact()):
            floor, action_floor = seal.floor, seal.action_floor  # its start is unknown: read only the rows it names
        events = yield from self._rows("event", self._event_fields, floor, seal.floor, seal.events)
        actions = yield from self._rows("action", self._action_fields, action_floor, seal.action_floor, seal.actions)
        present = {item[0] for item in events}
        missing = [seq for seq, _ in leaves(seal.events) if seq not in present]
        purges = (yield from self._purges(missing[0], missing[-1])) if missing else []
        trails = yield from self._trails(floor, seal.floor)
        contents: list[Content] = []
        if seal.contents is not None:
            contents = yield from self._contents([str(item[0]) for item in events if item[4] in ("enqueue", "succeed")])
        proofs = yield from self._proofs(actions)
        return Block(seal, events, actions, purges, trails, contents, proofs)

    @flow(writes=False)
    def unsealed(self, after: Seal | None) -> Steps[Tail]:
        """The rows after this seal that are not sealed yet, and rows that belong to no job."""
        text = (
            "select (select count(*) from {event} where seq > :floor)"
            " + (select count(*) from {action} where seq > :action_floor)"
        )
        floors = {"floor": 0, "action_floor": 0}
        if after is not None:
            floors = {"floor": after.floor, "action_floor": after.action_floor}
        rows = yield from self._query(EVERY, text, **floors)
        count = int(rows[0][0])
        text = (
            f"select {self._action_fields} from {{action}} e where e.type = 'purge' and e.seq > :floor order by e.seq"
        )
        rows = yield from self._query(EVERY, text, floor=floors["action_floor"])
        purges = [self._item(row) for row in rows]
        strays: list[Stray] = []
        for says, text in _STRAYS.items():
            rows = yield from self._query(EVERY, f"{text} limit {MAX_STRAYS:d}")
            strays += [Stray(self.dialect.codec.id(row[0]), says) for row in rows]
        return Tail(count, purges, (yield from self._proofs(purges)), strays)

    @flow(writes=False)
    def fingerprints(self, job_id: str, tenant: str) -> Steps[dict[int, str]]:
        """The current digests of a job's events, by number."""
        text = (
            f"select {self._event_fields} from {{event}} e"
            f" where e.job_id = :id and {within(tenant, 'e.tenant')} order by e.seq"
        )
        rows = yield from self._query(tenant, text, id=parse_id(job_id))
        return {int(row[0]): digest_of("event", self._item(row)).hex() for row in rows}

    @flow(writes=False)
    def actions(self, wanted: ActionFilter) -> Steps[list[Action]]:
        conditions, params = self._filter(wanted, "a", ("subject", "name", "actor", "type"))
        if wanted.before is not None:
            conditions.append("a.seq < :before")
            params["before"] = wanted.before
        text = (
            f"select {Record.columns(Action, 'a.')} from {{action}} a where {' and '.join(conditions)}"
            f" order by a.seq desc limit {max(1, min(wanted.limit, 1000)):d}"
        )
        return (yield from self._records(Action, wanted.tenant, text, **params))

    @flow(writes=False)
    def recent_events(self, wanted: EventFilter) -> Steps[EventPage]:
        """A page of the ledger. It reads at most ``EVENTS_SCANNED`` numbers, even if few of them match."""
        rows = yield from self._query(wanted.tenant, self._newest)
        high = min(wanted.before or 2**62, int(rows[0][0] or 0) + 1)
        low = max(0, high - EVENTS_SCANNED)
        conditions, params = self._filter(wanted, "e", ("kind", "actor", "type"))
        limit = max(1, min(wanted.limit, 1000))
        text = (
            f"select {EVENT_COLUMNS} from {{event}} e where {' and '.join(conditions)}"
            f" and e.seq < :high and e.seq > :low order by e.seq desc limit {limit:d}"
        )
        rows = yield from self._query(wanted.tenant, text, high=high, low=low, **params)
        decode = Record.decoder(Event, self.dialect.codec, skip=("cursor",))
        events = [decode(row) for row in rows]
        if len(events) == limit:
            return EventPage(events, events[-1].seq)
        return EventPage(events, low + 1 if low > 0 else None)

    def _filter(
        self, wanted: ActionFilter | EventFilter, alias: str, columns: Iterable[str]
    ) -> tuple[list[str], dict[str, Any]]:
        """Conditions and parameters for the tenant, the start time and the columns that the filter sets."""
        conditions, params = [within(wanted.tenant, f"{alias}.tenant")], dict[str, Any]()
        for column in columns:
            value = getattr(wanted, column)
            if value is not None:
                conditions.append(f"{alias}.{column} = :{column}")
                params[column] = value
        if wanted.since is not None:
            conditions.append(f"{alias}.at >= :since")
            params["since"] = self.dialect.codec.moment(wanted.since)
        return conditions, params

    def _seal(self, which: str, **params: object) -> Steps[Seal | None]:
        columns = Record.columns(Seal, "s.").replace("s.sealed_at", self._sealed_at)
        rows = yield from self._query(EVERY, f"select {columns} from {{seal}} s {which}", **params)
        if not rows:
            return None
        values: list[Any] = [bytes(value) if isinstance(value, memoryview) else value for value in rows[0]]
        return Seal(*values)

    def _rows(self, what: str, fields: str, low: int, high: int, sealed: bytes) -> Steps[list[Item]]:
        """The rows of a block: those between the previous floor and its own, and late ones outside that it names."""
        text = f"select {fields} from {{{what}}} e where e.seq > :low and e.seq <= :high order by e.seq"
        rows = yield from self._query(EVERY, text, low=low, high=high)
        items = [self._item(row) for row in rows]
        late = [str(number) for number, _ in leaves(sealed) if number <= low or number > high]
        if late:
            text = f"select {fields} from {{{what}}} e where e.seq {self._among}"
            rows = yield from self._query(EVERY, text, late=self.dialect.listed(late))
            items += [self._item(row) for row in rows]
        return items

    def _purges(self, low: int, high: int) -> Steps[list[str]]:
        """The event numbers of each purge that overlaps a range, also of purges that were announced."""
        text = (
            "select a.changed from {action} a"
            " where a.first_seq <= :high and a.last_seq >= :low and a.first_seq is not null order by a.seq"
        )
        rows = yield from self._query(EVERY, text, low=low, high=high)
        purges = [self.dialect.codec.json(row[0]) for row in rows]
        announced = {number for purge in purges if (number := Purged.announcement(purge)) is not None}
        ranges = [Ranges.purged(purge) for purge in purges if Purged.announcement(purge) is None]
        text = "select a.changed from {action} a where a.seq = :number and a.type = 'announce'"
        for number in sorted(announced):
            rows = yield from self._query(EVERY, text, number=number)
            ranges += [Ranges.purged(self.dialect.codec.json(row[0])) for row in rows]
        return ranges

    def _trails(self, low: int, high: int) -> Steps[list[Trail]]:
        rows = yield from self._query(EVERY, _TRAILS, low=low, high=high)
        trails = []
        for (job_id, state), group in groupby(rows, itemgetter(0, 1)):
            steps = list(group)
            consistent = all(row[6] for row in steps)
            trails.append(Trail(self.dialect.codec.id(job_id), state, [tuple(row[2:6]) for row in steps], consistent))
        return trails

    def _contents(self, numbers: Sequence[str]) -> Steps[list[Content]]:
        """The current payloads and results of the jobs of these events, read in parts because they may be large."""
        contents: list[Content] = []
        payloads = (yield from self._payloads()) if numbers else ""
        start, size = 0, FIRST_BATCH
        while start < len(numbers):
            late, characters = self.dialect.listed(numbers[start : start + size]), 0
            texts: dict[Literal["payload", "result"], str] = {"payload": payloads, "result": _RESULTS + self._among}
            for what, text in texts.items():
                rows = yield from self._query(EVERY, text, late=late)
                for row in rows:
                    values, replaced = (row[3:4], row[4]) if what == "payload" else (row[3:], None)
                    content = yield from self._content(what, row[0], row[1], row[2], values)
                    if replaced is not None:
                        content = replace(content, replaced=str(json.loads(replaced).get("new")))
                    contents.append(content)
                    characters += len(row[3] or "")
            start, size = start + size, next_batch(size, characters)
        return contents

    def _payloads(self) -> Steps[str]:
        """The statement that reads the payloads of the enqueue events in ``late``."""
        yield from ()  # PostgreSQL has to query which statement is allowed
        return PAYLOADS + self._among

    def _content(
        self, what: Literal["payload", "result"], seq: int, job: Any, state: str, texts: Row
    ) -> Steps[Content]:
        job_id = self.dialect.codec.id(job)
        if all(text is None for text in texts):
            return Content(seq, what, job_id, state, None)
        digest, resealed = content_digest(what, job_id, *texts), []
        if is_envelope(texts[0]):
            rows = yield from self._query(EVERY, _RESEALED, name=job_id)
            actions = [self.dialect.codec.json(row[0]) for row in rows]
            resealed = [str(changed.get(what)) for changed in actions if isinstance(changed, dict)]
        return Content(seq, what, job_id, state, digest, resealed)

    def _proofs(self, actions: Iterable[Item]) -> Steps[dict[int, Proof]]:
        """The evidence of the chain and the tables about the purges among these actions."""
        proofs: dict[int, Proof] = {}
        for action in actions:
            if action[4] != "purge":
                continue
            purged = Purged.of(action)
            cleaned = purged.cleaned
            sealed = yield from self._sealed_with(int(item[0] or 0) for item in cleaned.values())
            # If the clean event of a job was never sealed, none of the job's events may have been.
            unproved = [item for item in cleaned.values() if int(item[0] or 0) not in sealed]
            suspects = {seq for item in unproved for seq in Purged.listed(item) or ()} | purged.unlisted
            sealed |= yield from self._sealed_with(suspects)
            alive: frozenset[str] = frozenset()
            if cleaned:
                text = _ALIVE.replace("{among}", self._jobs)
                rows = yield from self._query(EVERY, text, jobs=self.dialect.listed(list(cleaned)))
                alive = frozenset(self.dialect.codec.id(row[0]) for row in rows)
            proofs[int(action[0] or 0)] = Proof(sealed, alive)
        return proofs

    def _sealed_with(self, numbers: Iterable[int]) -> Steps[dict[int, bytes]]:
        """The sealed digests of these events; events that no seal contains are left out."""
        digests: dict[int, bytes] = {}
        wanted = sorted(set(numbers))
        text = "select s.events from {seal} s where s.last_seq >= :seq and s.first_seq <= :seq order by s.number"
        for number in wanted:
            if number not in digests:
                rows = yield from self._query(EVERY, text, seq=number)
                for row in rows:
                    sealed = dict(leaves(bytes(row[0])))
                    digests |= {seq: sealed[seq] for seq in wanted if seq in sealed}
        return digests


# Seals contain the nearest time within the years 1 to 9999 (the SQL function ``in_time``).
_WITHIN = "least(greatest({column}, '0001-01-01 00:00:00+00'), '9999-12-31 00:00:00+00')"
_MICROS = f"(extract(epoch from {_WITHIN}) * 1000000)::bigint"


class PostgresAudit(Calls, AuditReads):
    _event_fields = (
        "e.seq, e.job_id::text, e.tenant, e.kind, e.type, e.from_state::text, e.to_state::text, e.attempt,"
        f" {_MICROS.format(column='e.at')}, e.actor, e.meta::text, e.xid"
    )
    _action_fields = (
        f"e.seq, e.tenant, {_MICROS.format(column='e.at')}, e.actor, e.type, e.subject, e.name, e.changed::text,"
        " e.first_seq, e.last_seq, e.xid"
    )
    _sealed_at = _MICROS.format(column="s.sealed_at")
    _newest = "select s.last_value from {event_seq} s"
    _among = "= any(:late::bigint[])"
    _jobs = "= any(:jobs::uuid[])"

    @override
    def _payloads(self) -> Steps[str]:
        """Read the table itself if that is allowed: the owner of the database could have changed the function."""
        text = "select has_column_privilege('{job}', 'payload', 'select')"
        rows = yield from self._query(EVERY, text)
        if rows[0][0]:
            return PAYLOADS + self._among
        return "select b.seq, b.job_id, b.state, b.payload, b.replaced from {enqueued_payloads}(:late::bigint[]) b"

    @flow(single=True)
    def seal(self, version: str, want: int = 2000) -> Steps[int]:
        """Seal the next block. Returns the number of rows in it; also 0 while another process is sealing."""
        return (yield from self._number("seal_ledger", "%s, %s", version, want))

    @flow(single=True, writes=False)
    def sealed(self, job_id: str, tenant: str) -> Steps[list[Sealed]]:
        """The sealed events of a job."""
        return (yield from self._call_as(Sealed, "seals_of", "%s, %s", parse_id(job_id), tenant))
