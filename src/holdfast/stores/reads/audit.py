"""Reading what was sealed, as it is hashed: one text on every store, but for how a column is written out."""

from __future__ import annotations

from typing import Any, ClassVar

from holdfast.domain.audit import Action, Item, Ranges, Seal, digest_of, leaves
from holdfast.domain.audit_check import Block
from holdfast.domain.ids import parse_id
from holdfast.domain.job import Event
from holdfast.stores.codecs import Record
from holdfast.stores.flow import Row, Steps, flow
from holdfast.stores.port.audit import ActionFilter, EventFilter, Looked
from holdfast.stores.reads.dialect import within
from holdfast.stores.reads.jobs import Reader
from holdfast.stores.reads.ledger import EVENT_COLUMNS

EVERY = "*"
LOWEST = -(2**63)
LOOKED_AT = 50_000
"""Numbers of the ledger that one page looks through."""


class AuditReads(Reader):
    # How the columns are asked for, so that the rows are what is hashed.
    _event_fields: ClassVar[str]
    _action_fields: ClassVar[str]
    _sealed_at: ClassVar[str]
    _among: ClassVar[str]
    _newest: ClassVar[str]

    @staticmethod
    def _item(row: Row) -> Item:
        return tuple(row)

    @flow(writes=False)
    def seal(self, number: int | None = None) -> Steps[Seal | None]:
        which = "1 = 1" if number is None else "s.number = :number"
        return (yield from self._seal(f"where {which} order by s.number desc limit 1", number=number))

    @flow(writes=False)
    def block(self, after: Seal | None) -> Steps[Block | None]:
        # Numbers begin with 1; whatever is below that was put in.
        before = (0, LOWEST, LOWEST) if after is None else (after.number, after.floor, after.action_floor)
        number, floor, action_floor = before
        seal = yield from self._seal("where s.number > :number order by s.number limit 1", number=number)
        if seal is None or not seal.is_whole():  # one that was edited says nothing about what to read
            return None if seal is None else Block(seal, (), (), ())
        if seal.number != number + 1 or (after is not None and not after.is_whole()):
            floor, action_floor = seal.floor, seal.action_floor  # where it begins is not known: only what it names
        events = yield from self._rows("event", self._event_fields, floor, seal.floor, seal.events)
        actions = yield from self._rows("action", self._action_fields, action_floor, seal.action_floor, seal.actions)
        there = {item[0] for item in events}
        missing = [each for each, _ in leaves(seal.events) if each not in there]
        purges = (yield from self._purges(missing[0], missing[-1])) if missing else []
        return Block(seal, events, actions, purges)

    @flow(writes=False)
    def unsealed(self, after: Seal | None) -> Steps[int]:
        text = (
            "select (select count(*) from {event} where seq > :floor)"
            " + (select count(*) from {action} where seq > :action_floor)"
        )
        floors = {"floor": 0, "action_floor": 0}
        if after is not None:
            floors = {"floor": after.floor, "action_floor": after.action_floor}
        rows = yield from self._ask(EVERY, text, **floors)
        return int(rows[0][0])

    @flow(writes=False)
    def fingerprints(self, job_id: str, tenant: str) -> Steps[dict[int, str]]:
        text = (
            f"select {self._event_fields} from {{event}} e"
            f" where e.job_id = :id and {within(tenant, 'e.tenant')} order by e.seq"
        )
        rows = yield from self._ask(tenant, text, id=parse_id(job_id))
        return {int(row[0]): digest_of("event", self._item(row)).hex() for row in rows}

    @flow(writes=False)
    def actions(self, wanted: ActionFilter) -> Steps[list[Action]]:
        conditions, params = [within(wanted.tenant, "a.tenant")], dict[str, Any]()
        for column in ("subject", "name", "actor", "verb"):
            value = getattr(wanted, column)
            if value is not None:
                conditions.append(f"a.{column} = :{column}")
                params[column] = value
        if wanted.since is not None:
            conditions.append("a.at >= :since")
            params["since"] = self.dialect.codec.moment(wanted.since)
        if wanted.before is not None:
            conditions.append("a.seq < :before")
            params["before"] = wanted.before
        text = (
            f"select {Record.columns(Action, 'a.')} from {{action}} a where {' and '.join(conditions)}"
            f" order by a.seq desc limit {max(1, min(wanted.limit, 1000)):d}"
        )
        rows = yield from self._ask(wanted.tenant, text, **params)
        decode = Record.decoder(Action, self.dialect.codec)
        return [decode(row) for row in rows]

    @flow(writes=False)
    def recent_events(self, wanted: EventFilter) -> Steps[Looked]:
        rows = yield from self._ask(wanted.tenant, self._newest)
        high = min(wanted.before or 2**62, int(rows[0][0] or 0) + 1)
        low = max(0, high - LOOKED_AT)
        conditions, params = [within(wanted.tenant, "e.tenant"), "e.seq < :high", "e.seq > :low"], dict[str, Any]()
        for column in ("kind", "actor", "verb"):
            value = getattr(wanted, column)
            if value is not None:
                conditions.append(f"e.{column} = :{column}")
                params[column] = value
        if wanted.since is not None:
            conditions.append("e.at >= :since")
            params["since"] = self.dialect.codec.moment(wanted.since)
        limit = max(1, min(wanted.limit, 1000))
        text = (
            f"select {EVENT_COLUMNS} from {{event}} e where {' and '.join(conditions)}"
            f" order by e.seq desc limit {limit:d}"
        )
        rows = yield from self._ask(wanted.tenant, text, high=high, low=low, **params)
        decode = Record.decoder(Event, self.dialect.codec, skip=("cursor",))
        events = [decode(row) for row in rows]
        if len(events) == limit:
            return Looked(events, events[-1].seq)
        return Looked(events, low + 1 if low > 0 else None)

    def _seal(self, which: str, **params: object) -> Steps[Seal | None]:
        columns = Record.columns(Seal, "s.").replace("s.sealed_at", self._sealed_at)
        rows = yield from self._ask(EVERY, f"select {columns} from {{seal}} s {which}", **params)
        if not rows:
            return None
        values: list[Any] = [bytes(value) if isinstance(value, memoryview) else value for value in rows[0]]
        return Seal(*values)

    def _rows(self, what: str, fields: str, low: int, high: int, kept: bytes) -> Steps[list[Item]]:
        """The rows in the place of a block: those between the floor before and its own, and late ones that it names."""
        text = f"select {fields} from {{{what}}} e where e.seq > :low and e.seq <= :high order by e.seq"
        rows = yield from self._ask(EVERY, text, low=low, high=high)
        found = [self._item(row) for row in rows]
        late = [str(number) for number, _ in leaves(kept) if number <= low or number > high]
        if late:
            text = f"select {fields} from {{{what}}} e where e.seq {self._among}"
            rows = yield from self._ask(EVERY, text, late=self.dialect.listed(late))
            found += [self._item(row) for row in rows]
        return found

    def _purges(self, low: int, high: int) -> Steps[list[str]]:
        text = (
            "select a.changed from {action} a"
            " where a.first_seq <= :high and a.last_seq >= :low and a.first_seq is not null order by a.seq"
        )
        rows = yield from self._ask(EVERY, text, low=low, high=high)
        return [Ranges.purged(self.dialect.codec.json(row[0])) for row in rows]
