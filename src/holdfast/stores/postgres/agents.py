"""The verbs of the registry of agents; the functions are in ``code/39_agents.sql``."""

from __future__ import annotations

import json

from holdfast.errors import InvalidInput
from holdfast.features.agents.model import Agent, Definition
from holdfast.stores.flow import Steps, flow
from holdfast.stores.postgres.base import Calls
from holdfast.stores.reads import Reads


class AgentVerbs(Calls, Reads):
    @flow()
    def register_agent(self, definition: Definition, tenant: str, actor: str | None = None) -> Steps[Agent]:
        new = definition
        yield self._call(
            "register_agent",
            "%s, %s, %s, %s, %s, %s::jsonb, %s, %s::float8, %s, %s, %s",
            new.id,
            new.name,
            new.kind,
            new.max_retries,
            new.max_crashes,
            None if new.backoff is None else json.dumps(new.backoff.to_json()),
            new.max_payload_bytes,
            new.max_wait,
            new.requires_approval,
            tenant,
            actor,
        )
        agent = yield from self.agent(new.id, tenant).start()
        assert agent is not None
        return agent

    @flow()
    def disable_agent(self, agent: str, reason: str, actor: str, tenant: str) -> Steps[Agent | None]:
        rows = yield self._call("disable_agent", "%s, %s, %s, %s", agent, reason, actor, tenant)
        if rows[0][-1] == "reason_required":
            raise InvalidInput("an agent is not disabled without a reason", code="reason_required")
        return (yield from self.agent(agent, tenant).start())

    @flow(single=True)
    def drain_agent(self, agent: str, tenant: str) -> Steps[bool]:
        rows = yield self._call("drain_agent", "%s, %s", agent, tenant)
        return bool(rows[0][0])

    @flow()
    def enable_agent(self, agent: str, tenant: str, actor: str | None = None) -> Steps[Agent | None]:
        yield self._call("enable_agent", "%s, 0, %s, %s", agent, tenant, actor)
        return (yield from self.agent(agent, tenant).start())

    @flow(single=True)
    def resume_agent(self, agent: str, want: int, tenant: str) -> Steps[int]:
        rows = yield self._call("resume_agent", "%s, %s, %s", agent, want, tenant)
        return int(rows[0][0])
