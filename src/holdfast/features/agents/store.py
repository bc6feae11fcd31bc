"""Agents and executors in the database: ports, shared reads, PostgreSQL and SQLite.

On SQLite there is one writer at a time, so an agent cannot change between its read and the end of the transaction.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cached_property
from typing import Protocol

from holdfast.engine.names import PagePosition
from holdfast.errors import InvalidInput
from holdfast.features.agents.model import WAITING_CAP, Agent, Definition, Executor
from holdfast.stores.codecs import Record
from holdfast.stores.flow import Flow, Row, Statement, Steps, flow
from holdfast.stores.job_reads import Reader
from holdfast.stores.postgres.base import Calls
from holdfast.stores.reader import at_most, beyond, within
from holdfast.stores.sqlite.base import SqlitePart, begin_write, end_write
from holdfast.stores.sqlite.codec import SqliteCodec


class AgentStore(Protocol):
    def disable(self, agent: str, reason: str, actor: str, tenant: str) -> Flow[Agent | None]:
        """Refuse new jobs for the agent and do not start its waiting jobs. None if the agent is not registered."""
        ...

    def drain(self, agent: str, tenant: str) -> Flow[bool]:
        """Wait for the transactions that saw the agent enabled; False if one of them is still open."""
        ...

    def enable(self, agent: str, tenant: str, actor: str | None = None) -> Flow[Agent | None]: ...

    def resume(self, agent: str, want: int, tenant: str) -> Flow[int]:
        """Requeue up to ``want`` jobs that were postponed while their agent was disabled. Returns how many."""
        ...

    def get(self, agent: str, tenant: str) -> Flow[Agent | None]: ...

    def set(self, definition: Definition, tenant: str, actor: str | None = None) -> Flow[Agent]:
        """Register the agent, or replace its definition. Does not change whether it is disabled."""
        ...

    def list(
        self,
        tenant: str,
        kind: str | None = None,
        disabled: bool | None = None,
        after: PagePosition | None = None,
        limit: int | None = None,
    ) -> Flow[list[Agent]]:
        """Agents by tenant and id: all, those for one kind, the disabled or the enabled ones."""
        ...


class ExecutorStore(Protocol):
    def add(self, label: str, role: str, actor: str) -> Flow[Executor]: ...

    def remove(self, label: str, actor: str | None = None) -> Flow[bool]: ...

    def list(self) -> Flow[list[Executor]]: ...


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
    def get(self, agent: str, tenant: str) -> Steps[Agent | None]:
        text = f"select {AGENT_COLUMNS} from {{agent}} a where a.id = :agent and {within(tenant, 'a.tenant')}"
        rows = yield from self._query(tenant, text, agent=agent)
        return self._agent(rows[0]) if rows else None

    @flow(writes=False)
    def list(
        self,
        tenant: str,
        kind: str | None = None,
        disabled: bool | None = None,
        after: PagePosition | None = None,
        limit: int | None = None,
    ) -> Steps[list[Agent]]:
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
        rows = yield from self._query(tenant, text, kind=kind, **cursor)
        return [self._agent(row) for row in rows]


class PostgresAgents(Calls, AgentReads):
    @flow()
    def disable(self, agent: str, reason: str, actor: str, tenant: str) -> Steps[Agent | None]:
        rows = yield self._call("disable_agent", "%s, %s, %s, %s", agent, reason, actor, tenant)
        if rows[0][-1] == "reason_required":
            raise InvalidInput("disabling an agent needs a reason", code="reason_required")
        return (yield from self.get(agent, tenant).start())

    @flow(single=True)
    def drain(self, agent: str, tenant: str) -> Steps[bool]:
        rows = yield self._call("drain_agent", "%s, %s", agent, tenant)
        return bool(rows[0][0])

    @flow()
    def enable(self, agent: str, tenant: str, actor: str | None = None) -> Steps[Agent | None]:
        yield self._call("enable_agent", "%s, 0, %s, %s", agent, tenant, actor)
        return (yield from self.get(agent, tenant).start())

    @flow(single=True)
    def resume(self, agent: str, want: int, tenant: str) -> Steps[int]:
        rows = yield self._call("resume_agent", "%s, %s, %s", agent, want, tenant)
        return int(rows[0][0])

    @flow()
    def set(self, definition: Definition, tenant: str, actor: str | None = None) -> Steps[Agent]:
        new = definition
        yield self._call(
            "register_agent",
            "%s, %s, %s, %s, %s, %s::jsonb, %s, %s::float8, %s, %s, %s",
            new.id,
            new.name,
            new.kind,
            new.max_attempts,
            new.max_crashes,
            None if new.backoff is None else json.dumps(new.backoff.to_json()),
            new.max_payload_bytes,
            new.max_wait,
            new.requires_approval,
            tenant,
            actor,
        )
        agent = yield from self.get(new.id, tenant).start()
        assert agent is not None
        return agent


class PostgresExecutors(Calls, Reader):
    @flow(single=True)
    def add(self, label: str, role: str, actor: str) -> Steps[Executor]:
        columns = Record.columns(Executor)
        text = f"select {columns} from {self.dialect.schema}add_executor(%s, %s, %s)"
        rows = yield Statement(text, (label, role, actor))
        return Record.decoder(Executor, self.dialect.codec)(rows[0])

    @flow(single=True)
    def remove(self, label: str, actor: str | None = None) -> Steps[bool]:
        rows = yield self._call("remove_executor", "%s, %s", label, actor)
        return bool(rows[0][0])

    @flow(writes=False)
    def list(self) -> Steps[list[Executor]]:
        rows = yield from self._query("default", f"select {Record.columns(Executor)} from {{executor}} order by label")
        decode = Record.decoder(Executor, self.dialect.codec)
        return [decode(row) for row in rows]


_DEFINITION = "name, kind, max_attempts, max_crashes, backoff, max_payload_bytes, max_wait, requires_approval"
_REGISTER = (
    f"INSERT INTO holdfast_agent AS a (tenant, id, {_DEFINITION}, created_at, updated_at)"
    " VALUES (:tenant, :id, :name, :kind, :max_attempts, :max_crashes, :backoff, :max_payload_bytes, :max_wait,"
    " :requires_approval, :now, :now) ON CONFLICT (tenant, id) DO UPDATE SET"
    f" ({_DEFINITION}, updated_at) = (excluded.{_DEFINITION.replace(', ', ', excluded.')}, excluded.updated_at)"
    f" WHERE (a.{_DEFINITION.replace(', ', ', a.')}) IS NOT (excluded.{_DEFINITION.replace(', ', ', excluded.')})"
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
        now = yield from begin_write(actor)
        yield Statement(_DISABLE, {"now": now, "actor": actor, "reason": reason, "tenant": tenant, "agent": agent})
        yield from end_write()
        return (yield from self.get(agent, tenant).start())

    @flow(writes=False)
    def drain(self, agent: str, tenant: str) -> Steps[bool]:
        """Nothing to wait for: disabling the agent took the write lock, so no other transaction saw it enabled."""
        yield from ()
        return True

    @flow()
    def enable(self, agent: str, tenant: str, actor: str | None = None) -> Steps[Agent | None]:
        now = yield from begin_write(actor)
        yield Statement(_ENABLE, {"now": now, "tenant": tenant, "agent": agent})
        yield from end_write()
        return (yield from self.get(agent, tenant).start())

    @flow(notifies=True)
    def resume(self, agent: str, want: int, tenant: str) -> Steps[int]:
        yield from begin_write(None)
        rows = yield Statement(_RESUME, {"tenant": tenant, "agent": agent, "want": want})
        yield from end_write()
        return len(rows)

    @flow()
    def set(self, definition: Definition, tenant: str, actor: str | None = None) -> Steps[Agent]:
        new = definition
        now = yield from begin_write(actor)
        params = {
            "tenant": tenant,
            "id": new.id,
            "name": new.name,
            "kind": new.kind,
            "max_attempts": new.max_attempts,
            "max_crashes": new.max_crashes,
            "backoff": None if new.backoff is None else json.dumps(new.backoff.to_json()),
            "max_payload_bytes": new.max_payload_bytes,
            "max_wait": new.max_wait,
            "requires_approval": int(new.requires_approval),
            "now": now,
        }
        yield Statement(_REGISTER, params)
        yield from end_write()
        agent = yield from self.get(new.id, tenant).start()
        assert agent is not None
        return agent


class SqliteExecutors(SqlitePart):
    @flow()
    def add(self, label: str, role: str, actor: str) -> Steps[Executor]:
        now = yield from begin_write(actor)
        yield Statement(_ADD, (label, role, actor, now))
        rows = yield Statement(f"{_EXECUTORS} WHERE label = ?", (label,))
        yield from end_write()
        return Record.decoder(Executor, SqliteCodec())(rows[0])

    @flow()
    def remove(self, label: str, actor: str | None = None) -> Steps[bool]:
        yield from begin_write(actor)
        rows = yield Statement("DELETE FROM holdfast_executor WHERE label = ? RETURNING 1", (label,))
        yield from end_write()
        return bool(rows)

    @flow(writes=False)
    def list(self) -> Steps[list[Executor]]:
        rows = yield Statement(f"{_EXECUTORS} WHERE label > '' ORDER BY label")
        decode = Record.decoder(Executor, SqliteCodec())
        return [decode(row) for row in rows]


_EXECUTORS = f"SELECT {Record.columns(Executor)} FROM holdfast_executor"
_ADD = (
    "INSERT INTO holdfast_executor (label, role, added_by, added_at) VALUES (?, ?, ?, ?) ON CONFLICT (label) DO UPDATE"
    " SET role = excluded.role, added_by = excluded.added_by, added_at = excluded.added_at WHERE role <> excluded.role"
)
