"""Looking at the rules for payloads, and at where what a job is about lies."""

from __future__ import annotations

from holdfast.engine.ids import parse_id
from holdfast.engine.job import References
from holdfast.features.payloads.model import PayloadRule
from holdfast.stores.codecs import Record
from holdfast.stores.flow import Steps, flow
from holdfast.stores.job_reads import Reader
from holdfast.stores.reader import within

_NONE = References()


class PayloadReads(Reader):
    @flow(writes=False)
    def payload_rules(self, tenant: str) -> Steps[list[PayloadRule]]:
        text = (
            f"select {Record.columns(PayloadRule, 'r.')} from {{payload_rule}} r"
            " where :tenant = '*' or r.tenant = :tenant or r.tenant = '*' order by r.tenant, r.kind, r.declared_by"
        )
        rows = yield from self._ask(tenant, text)
        decode = Record.decoder(PayloadRule, self.dialect.codec)
        return [decode(row) for row in rows]

    @flow(writes=False)
    def references(self, job_id: str, tenant: str) -> Steps[References]:
        text = (
            f"select r.source_ref, r.target_ref, r.payload_ref from {{reference}} r"
            f" where r.job_id = :id and {within(tenant, 'r.tenant')}"
        )
        rows = yield from self._ask(tenant, text, id=parse_id(job_id))
        return References(*rows[0]) if rows else _NONE
