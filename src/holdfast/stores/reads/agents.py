"""Looking at the registry of agents."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

from holdfast.engine.names import Place
from holdfast.features.agents.model import WAITING_CAP, Agent
from holdfast.stores.codecs import Record
from holdfast.stores.flow import Row, Steps, flow
from holdfast.stores.job_reads import Reader
from holdfast.stores.reader import at_most, beyond, within

AGENT_COLUMNS = (
    f"{Record.columns(Agent, 'a.', skip=('waiting',))}, (select count(*) from (select 1 from {{job_state}} s"
    " where s.tenant = a.tenant and s.agent = a.id and s.agent is not null and s.state in ('queued', 'retry_waiting')"
    f" limit {WAITING_CAP}) w)"
)


class AgentReads(Reader):
    @cached_property
    def _agent(self) -> Callable[[Row], Agent]:
        return Record.decoder(Agent, self.dialect.codec)

    @flow(writes=False)
    def agent(self, agent: str, tenant: str) -> Steps[Agent | None]:
        text = f"select {AGENT_COLUMNS} from {{agent}} a where a.id = :agent and {within(tenant, 'a.tenant')}"
        rows = yield from self._ask(tenant, text, agent=agent)
        return self._agent(rows[0]) if rows else None

    @flow(writes=False)
    def asks_first(self, agent: str, tenant: str) -> Steps[bool]:
        text = f"select 1 from {{agent}} a where a.id = :agent and {within(tenant, 'a.tenant')} and a.requires_approval"
        rows = yield from self._ask(tenant, text, agent=agent)
        return bool(rows)

    @flow(writes=False)
    def agents(
        self,
        tenant: str,
        kind: str | None = None,
        disabled: bool | None = None,
        after: Place | None = None,
        limit: int | None = None,
    ) -> Steps[list[Agent]]:
        later, place = beyond(tenant, after, "a.tenant", "a.id")
        conditions = [within(tenant, "a.tenant"), later]
        if kind is not None:
            conditions.append("a.kind = :kind")
        if disabled is not None:
            conditions.append(f"a.disabled_at is {'not ' if disabled else ''}null")
        text = (
            f"select {AGENT_COLUMNS} from {{agent}} a where {' and '.join(conditions)}"
            f" order by a.tenant, a.id{at_most(limit)}"
        )
        rows = yield from self._ask(tenant, text, kind=kind, **place)
        return [self._agent(row) for row in rows]
