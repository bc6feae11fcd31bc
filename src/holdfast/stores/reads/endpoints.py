"""Looking at endpoints, and at what became of what was sent to them."""

from __future__ import annotations

from holdfast.engine.ids import parse_id
from holdfast.features.webhooks.model import Endpoint, EndpointDelivery
from holdfast.stores.codecs import Record
from holdfast.stores.flow import Steps, flow
from holdfast.stores.job_reads import Reader
from holdfast.stores.reader import within

MOST = 1_000


class EndpointReads(Reader):
    @flow(writes=False)
    def endpoint(self, name: str, tenant: str) -> Steps[Endpoint | None]:
        text = (
            f"select {Record.columns(Endpoint, 'e.')} from {{endpoint}} e"
            f" where e.name = :name and {within(tenant, 'e.tenant')} order by e.tenant limit 1"
        )
        rows = yield from self._ask(tenant, text, name=name)
        return Record.decoder(Endpoint, self.dialect.codec)(rows[0]) if rows else None

    @flow(writes=False)
    def endpoints(self, tenant: str) -> Steps[list[Endpoint]]:
        text = (
            f"select {Record.columns(Endpoint, 'e.')} from {{endpoint}} e where {within(tenant, 'e.tenant')}"
            f" order by e.name, e.tenant limit {MOST:d}"
        )
        rows = yield from self._ask(tenant, text)
        decode = Record.decoder(Endpoint, self.dialect.codec)
        return [decode(row) for row in rows]

    @flow(writes=False)
    def endpoint_deliveries(
        self,
        endpoint_id: str,
        tenant: str,
        limit: int,
        before: str | None = None,
        message: str | None = None,
        failed: bool = False,
    ) -> Steps[list[EndpointDelivery]]:
        asked = [within(tenant, "d.tenant"), "d.endpoint_id = :endpoint"]
        params: dict[str, object] = {"endpoint": parse_id(endpoint_id)}
        if before is not None:
            asked.append("d.id < :before")
            params["before"] = parse_id(before)
        if message is not None:
            asked.append("d.message = :message")
            params["message"] = message
        if failed:
            asked.append("d.error_code is not null")
        text = (
            f"select {Record.columns(EndpointDelivery, 'd.')} from {{endpoint_delivery}} d"
            f" where {' and '.join(asked)} order by d.id desc limit {max(1, min(limit, MOST)):d}"
        )
        rows = yield from self._ask(tenant, text, **params)
        decode = Record.decoder(EndpointDelivery, self.dialect.codec)
        return [decode(row) for row in rows]
