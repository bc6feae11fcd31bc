"""Looking at what happened: a job's events and the attempts read from them."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

from holdfast.engine.ids import parse_id
from holdfast.engine.job import Attempt, Event
from holdfast.stores.codecs import Record
from holdfast.stores.flow import Row, Steps, flow
from holdfast.stores.reads.dialect import within
from holdfast.stores.reads.jobs import Reader

EVENT_COLUMNS = Record.columns(Event, "e.", skip=("cursor",))


class LedgerReads(Reader):
    @cached_property
    def _event(self) -> Callable[[Row], Event]:
        return Record.decoder(Event, self.dialect.codec, skip=("cursor",))

    @flow(writes=False)
    def history(self, job_id: str, tenant: str) -> Steps[list[Event]]:
        text = (
            f"select {EVENT_COLUMNS} from {{event}} e"
            f" where e.job_id = :id and {within(tenant, 'e.tenant')} order by e.seq"
        )
        rows = yield from self._ask(tenant, text, id=parse_id(job_id))
        return [self._event(row) for row in rows]

    @flow(writes=False)
    def attempts(self, job_id: str, tenant: str) -> Steps[list[Attempt]]:
        text = (
            f"select {Record.columns(Attempt, 'a.')} from {{attempts}} a"
            f" where a.job_id = :id and {within(tenant, 'a.tenant')} order by a.attempt"
        )
        rows = yield from self._ask(tenant, text, id=parse_id(job_id))
        decode = Record.decoder(Attempt, self.dialect.codec)
        return [decode(row) for row in rows]

    @flow(writes=False)
    def cursor_of(self, consumer: str, tenant: str) -> Steps[str | None]:
        # A consumer of every tenant's events keeps its place under '*', so this compares even then.
        text = "select c.cursor from {consumer} c where c.name = :name and c.tenant = :scope"
        rows = yield from self._ask(tenant, text, name=consumer, scope=tenant)
        return str(rows[0][0]) if rows else None
