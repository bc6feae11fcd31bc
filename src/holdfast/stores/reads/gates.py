"""Looking at what jobs have behind them and what they wait for: steps, gates, votes."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

from holdfast.engine.ids import parse_id
from holdfast.engine.steps import Step
from holdfast.features.approvals.model import Gate, GateFilter, Vote
from holdfast.stores.codecs import Record
from holdfast.stores.flow import Row, Steps, flow
from holdfast.stores.job_reads import Reader
from holdfast.stores.reader import within

MOST = 1000
# Looked up by key for each gate of the page; the words of one gate are few.
GATE_COLUMNS = (
    f"{Record.columns(Gate, 'g.', skip=('approvals',))},"
    " (select count(*) from {vote} v where v.gate_id = g.id and v.verdict = 'approve')"
)


class GateReads(Reader):
    @cached_property
    def _gate(self) -> Callable[[Row], Gate]:
        return Record.decoder(Gate, self.dialect.codec)

    @flow(writes=False)
    def steps(self, job_id: str, tenant: str) -> Steps[list[Step]]:
        columns = Record.columns(Step, "t.", skip=("now",))
        text = (
            f"select {columns}, p.now from {{step}} t, {{present}} p"
            f" where t.job_id = :id and {within(tenant, 't.tenant')} order by t.n"
        )
        rows = yield from self._ask(tenant, text, id=parse_id(job_id))
        decode = Record.decoder(Step, self.dialect.codec)
        return [decode(row) for row in rows]

    @flow(writes=False)
    def gate(self, gate_id: str, tenant: str) -> Steps[Gate | None]:
        text = f"select {GATE_COLUMNS} from {{gate}} g where g.id = :id and {within(tenant, 'g.tenant')}"
        rows = yield from self._ask(tenant, text, id=parse_id(gate_id))
        return self._gate(rows[0]) if rows else None

    @flow(writes=False)
    def gates(self, wanted: GateFilter) -> Steps[list[Gate]]:
        conditions, params = [within(wanted.tenant, "g.tenant")], dict[str, Any]()
        if wanted.state is not None:
            # Spelt out, so that a statement prepared for any state can still use the index of the open ones.
            conditions.append("g.state = 'open'" if wanted.state == "open" else "g.state = :state")
            params["state"] = wanted.state
        for name, value in (("name", wanted.name), ("job_id", wanted.job_id and parse_id(wanted.job_id))):
            if value is not None:
                conditions.append(f"g.{name} = :{name}")
                params[name] = value
        if wanted.approver is not None:
            named = self.dialect.has("g.approvers", ":approver")
            escalated = self.dialect.has("g.escalate_to", ":approver")
            conditions.append(f"(g.approvers = :nobody or {named} or (g.escalated_at is not null and {escalated}))")
            params |= {"approver": wanted.approver, "nobody": self.dialect.nobody}
        if wanted.after is not None:
            conditions.append("g.id < :after" if wanted.newest else "g.id > :after")
            params["after"] = parse_id(wanted.after)
        text = (
            f"select {GATE_COLUMNS} from {{gate}} g where {' and '.join(conditions)}"
            f" order by g.id{' desc' if wanted.newest else ''} limit {max(1, min(wanted.limit, MOST)):d}"
        )
        rows = yield from self._ask(wanted.tenant, text, **params)
        return [self._gate(row) for row in rows]

    @flow(writes=False)
    def votes(self, gate_id: str, tenant: str) -> Steps[list[Vote]]:
        text = (
            f"select {Record.columns(Vote, 'v.')} from {{vote}} v"
            f" where v.gate_id = :id and {within(tenant, 'v.tenant')} order by v.at, v.person"
        )
        rows = yield from self._ask(tenant, text, id=parse_id(gate_id))
        decode = Record.decoder(Vote, self.dialect.codec)
        return [decode(row) for row in rows]
