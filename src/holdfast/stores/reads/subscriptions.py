"""Looking at subscriptions, at what became of events, and at how far consumers have come."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cached_property
from typing import Literal

from holdfast.engine.job import EVERY_TENANT
from holdfast.features.events.model import Consumer, Delivery, Subscription
from holdfast.stores.codecs import Record
from holdfast.stores.flow import Row, Rows, Steps, flow
from holdfast.stores.job_reads import Reader
from holdfast.stores.reader import within

COLUMNS = Record.columns(Subscription, "s.")
COUNTED = 10_000
"""How far a consumer is behind is counted up to here."""


_CURSOR = re.compile(r"a?[0-9;:,]{0,100000}")


class SubscriptionReads(Reader):
    @cached_property
    def _one(self) -> Callable[[Row], Subscription]:
        return Record.decoder(Subscription, self.dialect.codec)

    @flow(writes=False)
    def subscription(self, name: str, tenant: str) -> Steps[Subscription | None]:
        # One for every tenant is kept under '*', so this compares even then.
        text = f"select {COLUMNS} from {{subscription}} s where s.name = :name and s.tenant = :scope"
        rows = yield from self._ask(tenant, text, name=name, scope=tenant)
        return self._one(rows[0]) if rows else None

    @flow(writes=False)
    def subscriptions(self, tenant: str) -> Steps[list[Subscription]]:
        text = f"select {COLUMNS} from {{subscription}} s where {within(tenant, 's.tenant')} order by s.name, s.tenant"
        rows = yield from self._ask(tenant, text)
        return [self._one(row) for row in rows]

    @flow(writes=False)
    def deliveries(self, id: str, tenant: str, refused: bool, limit: int) -> Steps[list[Delivery]]:
        """The newest first; only refusals, or all of them. Each has its index."""
        only = "and d.refusal is not null" if refused else ""
        text = (
            f"select {Record.columns(Delivery, 'd.')} from {{delivery}} d where d.subscription_id = :id {only}"
            f" and {within(tenant, 'd.tenant')} order by d.at desc, d.event desc limit {max(1, min(limit, 1000)):d}"
        )
        rows = yield from self._ask(tenant, text, id=id)
        decode = Record.decoder(Delivery, self.dialect.codec)
        return [decode(row) for row in rows]

    @flow(writes=False)
    def behind(self, cursor: str | None, of_ledger: bool, tenant: str) -> Steps[int]:
        """How many events are past a place; no more than so many are counted."""
        return (yield from self._past(cursor, of_ledger, COUNTED, tenant))

    @flow(writes=False)
    def consumers(self, tenant: str) -> Steps[list[Consumer]]:
        text = (
            "select c.tenant, c.name, c.cursor, c.updated_at from {consumer} c"
            f" where {within(tenant, 'c.tenant')} order by c.name, c.tenant"
        )
        rows: Rows = yield from self._ask(tenant, text)
        found = []
        for scope, name, cursor, updated_at in rows:
            told = cursor.startswith("a")
            past = yield from self._past(cursor, not told, COUNTED, scope)
            of: Literal["jobs", "application"] = "application" if told else "jobs"
            at = self.dialect.codec.time(updated_at)
            found.append(Consumer(scope, name, cursor, at, past, past == COUNTED, of))
        return found

    def _past(self, cursor: str | None, of_ledger: bool, most: int, tenant: str) -> Steps[int]:
        other = bool(cursor) and of_ledger == (cursor or "").startswith("a")
        if other or not _CURSOR.fullmatch(cursor or "") or not tenant.strip():
            return most  # written by hand, and of no use: as if it had read nothing
        if self.dialect.percent:  # a server whose cursors only it can read
            function = "events_after" if of_ledger else "app_events_after"
            text = f"select count(*) from {{{function}}}(:cursor, :most, :scope)"
            rows = yield from self._ask(tenant, text, cursor=cursor, most=most, scope=tenant)
            return int(rows[0][0])
        table = "event" if of_ledger else "app_event"
        mine = "1 = 1" if tenant == EVERY_TENANT else "e.tenant = :tenant"
        text = f"select count(*) from (select 1 from {{{table}}} e where e.seq > :seq and {mine} limit :most)"
        rows = yield from self._ask(
            tenant, text, seq=int((cursor or "0").lstrip("a").partition(";")[0] or 0), most=most
        )
        return int(rows[0][0])
