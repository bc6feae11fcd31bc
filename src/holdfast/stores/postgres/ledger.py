"""``store.ledger`` on PostgreSQL: events in commit order; the functions are in ``sql/ledger.sql``."""

from __future__ import annotations

import re

from holdfast.engine.ids import parse_id
from holdfast.engine.job import Event
from holdfast.errors import InvalidInput, NotFound, Refused
from holdfast.features.events.model import SentEvent
from holdfast.stores.flow import Steps, flow
from holdfast.stores.job_reads import LedgerReads
from holdfast.stores.postgres.base import Calls
from holdfast.stores.requests import SendEvent, SentResult

# floor;snapshot;next snapshot;position. Only the server interprets it.
_CURSOR = re.compile(r"[0-9]{1,18}(;[0-9:,]*){0,2}(;[0-9]{0,18})?")


class PostgresLedger(Calls, LedgerReads):
    @flow(single=True)
    def read(self, cursor: str | None, want: int, tenant: str) -> Steps[list[Event]]:
        _check(cursor)
        return (yield from self._rows_as(Event, self._call("events_after", "%s, %s, %s", cursor, want, tenant)))

    @flow(single=True)
    def gone(self, cursor: str, tenant: str) -> Steps[int | None]:
        """The number of the last event after this cursor that was purged since the cursor was issued; None when there
        is none. ``clean`` events do not count: a purge can follow at once, before any consumer could read them."""
        _check(cursor)
        rows = yield self._call("events_gone", "%s, %s", cursor, tenant)
        number: int | None = rows[0][0]
        return number

    @flow(writes=False)
    def end(self, tenant: str) -> Steps[str]:
        """The current end of the ledger as a cursor: every later commit is after it."""
        text = "select s.last_value || ';' || {ledger_snapshot}()::text from {event_seq} s"
        rows = yield from self._query(tenant, text)
        return str(rows[0][0])

    @flow(single=True)
    def save_cursor(self, consumer: str, cursor: str, was: str | None, tenant: str) -> Steps[bool]:
        return (yield from self._flag("save_cursor", "%s, %s, %s, %s", consumer, cursor, was, tenant))

    @flow(single=True)
    def read_sent(self, cursor: str | None, want: int, tenant: str) -> Steps[list[SentEvent]]:
        """Events sent by applications, in commit order. Their cursors differ from those of the ledger."""
        return (yield from self._rows_as(SentEvent, self._call("app_events_after", "%s, %s, %s", cursor, want, tenant)))

    def _send_again(self, event: SendEvent, actor: str, tenant: str) -> Steps[SentResult]:
        """Send after a lost connection: the sender creates the id, which shows whether the first attempt committed."""
        sent = yield from self.send(event, actor, tenant).start()
        return sent

    @flow(single=True, repeat=_send_again)
    def send(self, event: SendEvent, actor: str, tenant: str) -> Steps[SentResult]:
        job = None if event.job_id is None else parse_id(event.job_id)
        params = (event.name, event.data, event.key, job, actor, tenant, event.id, event.cause_id)
        rows = yield self._call("send_event", "%s, %s::json, %s, %s::uuid, %s, %s, %s::uuid, %s::uuid", *params)
        event_id, created, woke, refused, reason, detail = rows[0]
        if refused:
            raise NotFound(detail) if reason == "not_found" else Refused(detail, code=reason)
        return SentResult(str(event_id), created, woke)


def _check(cursor: str | None) -> None:
    if cursor and not _CURSOR.fullmatch(cursor):
        raise InvalidInput(f"{cursor[:50]!r} is not a cursor of this ledger", code="invalid_cursor")
