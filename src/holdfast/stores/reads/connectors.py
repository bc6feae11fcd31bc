"""Looking at the settings of connectors."""

from __future__ import annotations

from holdfast.features.connectors.model import Connector
from holdfast.stores.codecs import Record
from holdfast.stores.flow import Steps, flow
from holdfast.stores.job_reads import Reader
from holdfast.stores.reader import within


class ConnectorReads(Reader):
    @flow(writes=False)
    def connectors(self, tenant: str) -> Steps[list[Connector]]:
        text = (
            f"select {Record.columns(Connector, 'c.')} from {{connector}} c where {within(tenant, 'c.tenant')}"
            " order by c.name, c.tenant"
        )
        rows = yield from self._ask(tenant, text)
        decode = Record.decoder(Connector, self.dialect.codec)
        return [decode(row) for row in rows]

    @flow(writes=False)
    def connector(self, name: str, tenant: str) -> Steps[Connector | None]:
        text = (
            f"select {Record.columns(Connector, 'c.')} from {{connector}} c where c.name = :name and c.tenant = :tenant"
        )
        rows = yield from self._ask(tenant, text, name=name)
        return Record.decoder(Connector, self.dialect.codec)(rows[0]) if rows else None
