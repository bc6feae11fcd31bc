"""How many jobs there are in each state."""

from __future__ import annotations

from holdfast.domain.states import State
from holdfast.stores.flow import Steps, flow
from holdfast.stores.reads.dialect import within
from holdfast.stores.reads.jobs import Reader


class OverviewReads(Reader):
    @flow(writes=False)
    def counts(self, tenant: str) -> Steps[dict[State, int]]:
        text = f"select s.state, count(*) from {{job_state}} s where {within(tenant, 's.tenant')} group by s.state"
        rows = yield from self._ask(tenant, text)
        return {State(state): count for state, count in rows}
