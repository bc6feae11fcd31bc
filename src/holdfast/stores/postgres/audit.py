"""The verbs of the audit trail; the functions are in ``code/27_audit`` and ``54_audit``. The server itself hashes."""

from __future__ import annotations

from typing_extensions import override

from holdfast.engine.ids import parse_id
from holdfast.features.audit.model import Sealed
from holdfast.stores.codecs import Record
from holdfast.stores.flow import Statement, Steps, flow
from holdfast.stores.reads.audit import EVERY, PAYLOADS, AuditReads

# As the seals have it: the nearest time within the years 1 to 9999 (``in_time``).
_WITHIN = "least(greatest({column}, '0001-01-01 00:00:00+00'), '9999-12-31 00:00:00+00')"
_MICROS = f"(extract(epoch from {_WITHIN}) * 1000000)::bigint"


class AuditVerbs(AuditReads):
    _event_fields = (
        "e.seq, e.job_id::text, e.tenant, e.kind, e.verb, e.from_state::text, e.to_state::text, e.attempt,"
        f" {_MICROS.format(column='e.at')}, e.actor, e.meta::text, e.xid"
    )
    _action_fields = (
        f"e.seq, e.tenant, {_MICROS.format(column='e.at')}, e.actor, e.verb, e.subject, e.name, e.changed::text,"
        " e.first_seq, e.last_seq, e.xid"
    )
    _sealed_at = _MICROS.format(column="s.sealed_at")
    _newest = "select s.last_value from {event_seq} s"
    _among = "= any(:late::bigint[])"
    _jobs = "= any(:jobs::uuid[])"

    @override
    def _payloads(self) -> Steps[str]:
        """From the table itself, where that is allowed: a function is only as honest as the owner of the database."""
        text = "select has_column_privilege('{job}', 'payload', 'select')"
        rows = yield from self._ask(EVERY, text)
        if rows[0][0]:
            return PAYLOADS + self._among
        return "select b.seq, b.job_id, b.state, b.payload from {brought_payloads}(:late::bigint[]) b"

    @flow(single=True)
    def seal_ledger(self, version: str, want: int = 2000) -> Steps[int]:
        rows = yield Statement(f"select {self.dialect.schema}seal_ledger(%s, %s)", (version, want))
        return int(rows[0][0])

    @flow(single=True, writes=False)
    def sealed(self, job_id: str, tenant: str) -> Steps[list[Sealed]]:
        text = f"select {Record.columns(Sealed)} from {self.dialect.schema}seals_of(%s, %s)"
        rows = yield Statement(text, (parse_id(job_id), tenant))
        decode = Record.decoder(Sealed, self.dialect.codec)
        return [decode(row) for row in rows]
