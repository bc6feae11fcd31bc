"""Reading the ledger in the order of commits; the functions are in ``code/47_events.sql``."""

from __future__ import annotations

import re

from holdfast.engine.job import Event
from holdfast.errors import InvalidInput
from holdfast.stores.codecs import Record
from holdfast.stores.flow import Steps, flow
from holdfast.stores.job_reads import Reader
from holdfast.stores.postgres.base import Calls

# floor, snapshot, next snapshot, place: what is between them only the server can read.
_CURSOR = re.compile(r"[0-9]{1,18}(;[0-9:,]*){0,2}(;[0-9]{0,18})?")


class PostgresLedger(Calls, Reader):
    @flow(single=True)
    def events_after(self, cursor: str | None, want: int, tenant: str) -> Steps[list[Event]]:
        _check(cursor)
        decode = Record.decoder(Event, self.dialect.codec)
        rows = yield self._call("events_after", "%s, %s, %s", cursor, want, tenant)
        return [decode(row) for row in rows]

    @flow(single=True)
    def events_gone(self, cursor: str, tenant: str) -> Steps[int | None]:
        _check(cursor)
        rows = yield self._call("events_gone", "%s, %s", cursor, tenant)
        found: int | None = rows[0][0]
        return found

    @flow(writes=False)
    def ledger_end(self, tenant: str) -> Steps[str]:
        text = "select s.last_value || ';' || pg_current_snapshot()::text from {event_seq} s"
        rows = yield from self._ask(tenant, text)
        return str(rows[0][0])

    @flow(single=True)
    def save_cursor(self, consumer: str, cursor: str, was: str | None, tenant: str) -> Steps[bool]:
        rows = yield self._call("save_cursor", "%s, %s, %s, %s", consumer, cursor, was, tenant)
        return bool(rows[0][0])


def _check(cursor: str | None) -> None:
    if cursor and not _CURSOR.fullmatch(cursor):
        raise InvalidInput(f"{cursor[:50]!r} is not a cursor of this ledger", code="invalid_cursor")
