"""Restores in the database: shared reads, PostgreSQL and SQLite.

The reads work in a copy that was not adopted, where cursors cannot be read from yet.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar

from holdfast.engine.job import EVERY_TENANT
from holdfast.features.restores.model import COUNTED, LISTED, Origin, RestoreReport, Unread
from holdfast.stores.flow import Rows, Statement, Steps, flow
from holdfast.stores.job_reads import Reader
from holdfast.stores.postgres.base import Calls
from holdfast.stores.sqlite.base import SqlitePart, begin_write, end_write

_RUNNING = "{job_state} s where s.state in ('leased', 'in_progress')"
_READERS = (
    "select c.tenant, 'consumer ' || c.name, c.cursor from {consumer} c union all"
    " select s.tenant, 'subscription ' || s.name, s.cursor from {subscription} s order by 2, 1"
)


class RestoreReads(Reader):
    _unread: ClassVar[str]
    """The expression for how many events of ``:scope`` are after ``:cursor``, up to ``COUNTED``."""

    @abstractmethod
    def _origin(self) -> Steps[Origin]: ...

    @flow(writes=False)
    def report(self) -> Steps[RestoreReport]:
        time = self.dialect.codec.time
        origin = yield from self._origin()
        epochs = yield from self._all("select e.number, e.at from {ledger_epoch} e order by e.number desc limit 1")
        events = yield from self._all("select e.seq, e.at from {event} e order by e.seq desc limit 1")
        seals = yield from self._all("select s.number, s.sealed_at from {seal} s order by s.number desc limit 1")
        ((running,),) = yield from self._all(f"select count(*) from {_RUNNING}")
        jobs = yield from self._all(f"select s.id from {_RUNNING} order by s.id limit {LISTED}")
        missed = yield from self._all(
            "select s.tenant || '/' || s.name from {schedule} s, {present} p where s.state = 'active'"
            f" and s.next_fire_at < p.now order by s.next_fire_at, s.id limit {LISTED}"
        )
        unread = []
        for tenant, name, cursor in (yield from self._all(_READERS)):
            ((count,),) = yield from self._all(f"select {self._unread}", cursor=cursor or "", scope=tenant)
            unread.append(Unread(tenant, name, int(count)))
        return RestoreReport(
            origin=origin,
            epoch=int(epochs[0][0]) if epochs else 0,
            adopted_at=time(epochs[0][1]) if epochs else None,
            last_event=events[0][0] if events else None,
            last_event_at=time(events[0][1]) if events else None,
            running=int(running),
            running_jobs=tuple(str(row[0]) for row in jobs),
            missed=tuple(str(row[0]) for row in missed),
            unread=tuple(unread),
            seal=seals[0][0] if seals else None,
            sealed_at=time(seals[0][1]) if seals else None,
        )

    def _all(self, text: str, /, **params: object) -> Steps[Rows]:
        return (yield from self._query(EVERY_TENANT, text, **params))


class PostgresRestores(Calls, RestoreReads):
    _unread = f"{{unread_events}}(:cursor, :scope, {COUNTED})"

    def _origin(self) -> Steps[Origin]:
        rows = yield self._call("origin", "")
        origin: Origin = rows[0][0]
        return origin

    @flow()
    def adopt(self, actor: str) -> Steps[int]:
        return (yield from self._number("adopt_copy", "%s", actor))


class SqliteRestores(SqlitePart, RestoreReads):
    _unread = (
        "(select count(*) from (select 1 from {event} e where :cursor not like 'a%'"
        f" and e.seq > cast(:cursor as integer) and :scope in (e.tenant, '*') limit {COUNTED}))"
        " + (select count(*) from (select 1 from {app_event} e where :cursor like 'a%'"
        f" and e.seq > cast(substr(:cursor, 2) as integer) and :scope in (e.tenant, '*') limit {COUNTED}))"
    )

    def _origin(self) -> Steps[Origin]:
        yield from ()
        return "unknown"

    @flow()
    def adopt(self, actor: str) -> Steps[int]:
        """Begin an epoch whose numbers are beyond all that the original may have given since the copy was made."""
        now = yield from begin_write(actor)
        ((number, first),) = yield Statement(_BEGIN, {"actor": actor, "now": now})
        yield Statement(_ACTION, {"actor": actor, "now": now, "seq": first, "changed": f'{{"epoch":{number}}}'})
        yield Statement("DROP TRIGGER IF EXISTS holdfast_begin_epoch")
        yield Statement(_NUMBER.format(first=int(first)))
        yield from end_write()
        return int(number)


_BEGIN = (
    "INSERT INTO holdfast_ledger_epoch (number, first_seq, at, actor)"
    " SELECT max(number) + 1, (max((SELECT coalesce(max(seq), 0) FROM holdfast_event),"
    " (SELECT coalesce(max(seq), 0) FROM holdfast_app_event), (SELECT coalesce(max(seq), 0) FROM holdfast_action))"
    " / 1000000000 + 2) * 1000000000, :now, :actor FROM holdfast_ledger_epoch RETURNING number, first_seq"
)
_ACTION = (
    "INSERT INTO holdfast_action (seq, tenant, at, actor, type, subject, name, changed)"
    " VALUES (:seq, '*', :now, :actor, 'adopt', 'database', 'main', :changed)"
)
# SQLite gives a row the number after the newest one, so that only the first event needs another. The condition costs an
# adopted file a microsecond per event.
_NUMBER = """
CREATE TRIGGER holdfast_begin_epoch BEFORE INSERT ON holdfast_event
WHEN NEW.seq IS NOT {first} AND (SELECT coalesce(max(seq), 0) FROM holdfast_event) < {first}
BEGIN
    INSERT INTO holdfast_event (seq, job_id, tenant, kind, type, from_state, to_state, attempt, at, actor, meta)
    VALUES ({first}, NEW.job_id, NEW.tenant, NEW.kind, NEW.type, NEW.from_state, NEW.to_state, NEW.attempt, NEW.at,
            NEW.actor, NEW.meta);
    SELECT RAISE(IGNORE);
END
"""
