"""Looking at what is paused."""

from __future__ import annotations

from holdfast.features.limits.model import Switch
from holdfast.stores.codecs import Record
from holdfast.stores.flow import Steps, flow
from holdfast.stores.job_reads import Reader


class SwitchReads(Reader):
    @flow(writes=False)
    def switches(self, tenant: str) -> Steps[list[Switch]]:
        text = (
            f"select {Record.columns(Switch, 'w.')} from {{switch}} w, {{present}} p"
            " where (w.until is null or w.until > p.now) and (:tenant = '*' or w.tenant = :tenant or w.tenant = '*')"
            " order by case w.scope when 'all' then 0 when 'queue' then 1 when 'kind' then 2 else 3 end,"
            " w.name, w.tenant"
        )
        rows = yield from self._ask(tenant, text)
        decode = Record.decoder(Switch, self.dialect.codec)
        return [decode(row) for row in rows]
