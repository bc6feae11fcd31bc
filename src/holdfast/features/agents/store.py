"""Agents and executors in the database: ports, shared reads, PostgreSQL and SQLite.

On SQLite there is one writer at a time, so an agent cannot change between its read and the end of the transaction.
"""

from __future__ import annotations

import dataclasses
import json
from typing import Any

from holdfast.engine.names import PagePosition
from holdfast.errors import InvalidInput
from holdfast.features.agents.model import WAITING_CAP, Agent, Definition, Executor
from holdfast.stores.codecs import Record
from holdfast.stores.flow import Statement, Steps, flow
from holdfast.stores.job_reads import Reader
from holdfast.stores.postgres.base import Calls
from holdfast.stores.reader import at_most, beyond, within
from holdfast.stores.sqlite.base import SqlitePart, begin_write, end_write, upsert, write

AGENT_COLUMNS = (
    f"{Record.columns(Agent, 'a.', skip=('waiting',))}, (select count(*) from (select 1 from {{job_state}} s"
    " where s.tenant = a.tenant and s.agent = a.id and s.agent is not null and s.state in ('queued', 'retry_waiting')"
    f" limit {WAITING_CAP}) w)"
)


class AgentReads(Reader):
    @flow(writes=False)
    def get(self, agent: str, tenant: str) -> Steps[Agent | None]:
        text = f"select {AGENT_COLUMNS} from {{agent}} a where a.id = :agent and {within(tenant, 'a.tenant')}"
        return (yield from self._record(Agent, tenant, text, agent=agent))

    @flow(writes=False)
    def list(
        self,
        tenant: str,
        kind: str | None = None,
        disabled: bool | None = None,
        after: PagePosition | None = None,
        limit: int | None = None,
    ) -> Steps[list[Agent]]:
        """Agents by tenant and id: all, those for one kind, the disabled or the enabled ones."""
        past_cursor, cursor = beyond(tenant, after, "a.tenant", "a.id")
        conditions = [within(tenant, "a.tenant"), past_cursor]
        if kind is not None:
            conditions.append("a.kind = :kind")
        if disabled is not None:
            conditions.append(f"a.disabled_at is {'not ' if disabled else ''}null")
        text = (
            f"select {AGENT_COLUMNS} from {{agent}} a where {' and '.join(conditions)}"
            f" order by a.tenant, a.id{at_most(limit)}"
        )
        return (yield from self._records(Agent, tenant, text, kind=kind, **cursor))


class PostgresAgents(Calls, AgentReads):
    @flow()
    def disable(self, agent: str, reason: str, actor: str, tenant: str) -> Steps[Agent | None]:
        """Refuse new jobs for the agent and do not start its waiting jobs. None if the agent is not registered."""
        rows = yield self._call("disable_agent", "%s, %s, %s, %s", agent, reason, actor, tenant)
        if rows[0][-1] == "reason_required":
            raise InvalidInput("disabling an agent needs a reason", code="reason_required")
        return (yield from self.get(agent, tenant).start())

    @flow(single=True)
    def drain(self, agent: str, tenant: str) -> Steps[bool]:
        """Wait for the transactions that saw the agent enabled; False if one of them is still open."""
        return (yield from self._flag("drain_agent", "%s, %s", agent, tenant))

    @flow()
    def enable(self, agent: str, tenant: str, actor: str | None = None) -> Steps[Agent | None]:
        yield self._call("enable_agent", "%s, 0, %s, %s", agent, tenant, actor)
        return (yield from self.get(agent, tenant).start())

    @flow(single=True)
    def resume(self, agent: str, want: int, tenant: str) -> Steps[int]:
        """Requeue up to ``want`` jobs that were postponed while their agent was disabled. Returns how many."""
        return (yield from self._number("resume_agent", "%s, %s, %s", agent, want, tenant))

    @flow()
    def set(self, definition: Definition, tenant: str, actor: str | None = None) -> Steps[Agent]:
        """Register the agent, or replace its definition. Does not change whether it is disabled."""
        given = _stored(definition) | {"agent": definition.id, "for_tenant": tenant, "actor": actor}
        del given["id"]
        yield self._call_with("set_agent", given)
        agent = yield from self.get(definition.id, tenant).start()
        assert agent is not None
        return agent


class ExecutorReads(Reader):
    @flow(writes=False)
    def list(self) -> Steps[list[Executor]]:
        text = f"select {Record.columns(Executor)} from {{executor}} where label > '' order by label"
        return (yield from self._records(Executor, "default", text))


class PostgresExecutors(Calls, ExecutorReads):
    @flow(single=True)
    def set(self, label: str, role: str, actor: str) -> Steps[Executor]:
        return (yield from self._call_as(Executor, "set_executor", "%s, %s, %s", label, role, actor))[0]

    @flow(single=True)
    def remove(self, label: str, actor: str | None = None) -> Steps[bool]:
        return (yield from self._flag("remove_executor", "%s, %s", label, actor))


_REGISTER = upsert(
    "holdfast_agent",
    Agent,
    keep="tenant id created_at",
    compare=" ".join(field.name for field in dataclasses.fields(Definition) if field.name != "id"),
    skip="disabled_at disabled_by disabled_reason waiting",
)
_DISABLE = (
    "UPDATE holdfast_agent SET disabled_at = :now, disabled_by = :actor, disabled_reason = :reason, updated_at = :now"
    " WHERE tenant = :tenant AND id = :agent AND disabled_at IS NULL"
)
_ENABLE = (
    "UPDATE holdfast_agent SET disabled_at = NULL, disabled_by = NULL, disabled_reason = NULL, updated_at = :now"
    " WHERE tenant = :tenant AND id = :agent AND disabled_at IS NOT NULL"
)
_WAITING = "tenant = :tenant AND agent = :agent AND agent IS NOT NULL AND state IN ('queued', 'retry_waiting')"
_RESUME = (
    "UPDATE holdfast_job_state SET due_at = NULL, note = NULL WHERE n IN (SELECT n FROM holdfast_job_state"
    f" WHERE {_WAITING} AND +state = 'queued' AND due_at IS NOT NULL"
    " AND json_extract(note, '$.held') = 'agent_disabled'"
    " AND NOT EXISTS (SELECT 1 FROM holdfast_agent WHERE tenant = :tenant AND id = :agent AND disabled_at IS NOT NULL)"
    " LIMIT :want) RETURNING 1"
)


class SqliteAgents(SqlitePart, AgentReads):
    @flow()
    def disable(self, agent: str, reason: str, actor: str, tenant: str) -> Steps[Agent | None]:
        if not reason.strip():
            raise InvalidInput("disabling an agent needs a reason", code="reason_required")
        yield from write(actor, _DISABLE, reason=reason, tenant=tenant, agent=agent)
        return (yield from self.get(agent, tenant).start())

    @flow(writes=False)
    def drain(self, agent: str, tenant: str) -> Steps[bool]:
        """Nothing to wait for: disabling the agent took the write lock, so no other transaction saw it enabled."""
        yield from ()
        return True

    @flow()
    def enable(self, agent: str, tenant: str, actor: str | None = None) -> Steps[Agent | None]:
        yield from write(actor, _ENABLE, tenant=tenant, agent=agent)
        return (yield from self.get(agent, tenant).start())

    @flow(notifies=True)
    def resume(self, agent: str, want: int, tenant: str) -> Steps[int]:
        return len((yield from write(None, _RESUME, tenant=tenant, agent=agent, want=want)))

    @flow()
    def set(self, definition: Definition, tenant: str, actor: str | None = None) -> Steps[Agent]:
        now = yield from begin_write(actor)
        yield Statement(_REGISTER, _stored(definition) | {"tenant": tenant, "created_at": now, "updated_at": now})
        yield from end_write()
        agent = yield from self.get(definition.id, tenant).start()
        assert agent is not None
        return agent


def _stored(definition: Definition) -> dict[str, Any]:
    """The definition by column."""
    columns = {field.name: getattr(definition, field.name) for field in dataclasses.fields(definition)}
    if definition.backoff is not None:
        columns["backoff"] = json.dumps(definition.backoff.to_json())
    return columns


class SqliteExecutors(SqlitePart, ExecutorReads):
    @flow()
    def set(self, label: str, role: str, actor: str) -> Steps[Executor]:
        now = yield from begin_write(actor)
        yield Statement(_ADD, {"label": label, "role": role, "added_by": actor, "added_at": now})
        (executor,) = yield from self._rows_as(Executor, Statement(_EXECUTOR, (label,)))
        yield from end_write()
        return executor

    @flow()
    def remove(self, label: str, actor: str | None = None) -> Steps[bool]:
        text = "DELETE FROM holdfast_executor WHERE label = :label RETURNING 1"
        return bool((yield from write(actor, text, label=label)))


_EXECUTOR = f"SELECT {Record.columns(Executor)} FROM holdfast_executor WHERE label = ?"
_ADD = upsert("holdfast_executor", Executor, keep="label", compare="role")
