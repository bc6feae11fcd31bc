"""Looking at what is reserved and at how queues are kept."""

from __future__ import annotations

from holdfast.engine.ids import parse_id
from holdfast.features.limits.model import QueueSetting, Reservation
from holdfast.stores.codecs import Record
from holdfast.stores.flow import Steps, flow
from holdfast.stores.job_reads import Reader

_OWN = "(:tenant = '*' or r.tenant = :tenant or r.tenant = '*')"


class LimitReads(Reader):
    @flow(writes=False)
    def reservations(self, tenant: str, ended: bool = False, limit: int = 50) -> Steps[list[Reservation]]:
        which = "1 = 1" if ended else "r.state in ('waiting', 'active')"
        order = "desc" if ended else "asc"
        text = (
            f"select {Record.columns(Reservation, 'r.')} from {{reservation}} r where {which} and {_OWN}"
            f" order by r.asked_at {order}, r.id {order} limit {max(1, min(limit, 1000)):d}"
        )
        rows = yield from self._ask(tenant, text)
        decode = Record.decoder(Reservation, self.dialect.codec)
        return [decode(row) for row in rows]

    @flow(writes=False)
    def reservation(self, reservation_id: str, tenant: str) -> Steps[Reservation | None]:
        text = f"select {Record.columns(Reservation, 'r.')} from {{reservation}} r where r.id = :id and {_OWN}"
        rows = yield from self._ask(tenant, text, id=parse_id(reservation_id))
        return Record.decoder(Reservation, self.dialect.codec)(rows[0]) if rows else None

    @flow(writes=False)
    def queue_settings(self, tenant: str) -> Steps[list[QueueSetting]]:
        columns = Record.columns(QueueSetting, "r.")
        text = f"select {columns} from {{queue_setting}} r where {_OWN} order by r.queue, r.tenant"
        rows = yield from self._ask(tenant, text)
        decode = Record.decoder(QueueSetting, self.dialect.codec)
        return [decode(row) for row in rows]
