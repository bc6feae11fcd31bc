"""The registry of agents (CX-16): register, disable, enable, and holding back the jobs of those that are disabled.

There is one writer at a time, so an agent that was read is as it was read until the end of the transaction.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

from holdfast.engine.job import JobSpec
from holdfast.engine.times import MICROSECOND
from holdfast.errors import InvalidInput
from holdfast.features.agents.model import HOLD, Agent, Definition
from holdfast.stores.codecs import Record
from holdfast.stores.flow import Row, Statement, Steps, flow
from holdfast.stores.reads import Reads
from holdfast.stores.sqlite.base import ids_json, sign, unsign
from holdfast.stores.sqlite.codec import SqliteCodec

_PARTS = "name, kind, max_retries, max_crashes, backoff, max_payload_bytes, max_wait, requires_approval"
_REGISTER = (
    f"INSERT INTO agent AS a (tenant, id, {_PARTS}, created_at, updated_at)"
    " VALUES (:tenant, :id, :name, :kind, :max_retries, :max_crashes, :backoff, :max_payload_bytes, :max_wait,"
    " :requires_approval, :now, :now) ON CONFLICT (tenant, id) DO UPDATE SET"
    f" ({_PARTS}, updated_at) = (excluded.{_PARTS.replace(', ', ', excluded.')}, excluded.updated_at)"
    f" WHERE (a.{_PARTS.replace(', ', ', a.')}) IS NOT (excluded.{_PARTS.replace(', ', ', excluded.')})"
)
_DISABLE = (
    "UPDATE agent SET disabled_at = :now, disabled_by = :actor, disabled_reason = :reason, updated_at = :now"
    " WHERE tenant = :tenant AND id = :agent AND disabled_at IS NULL"
)
_ENABLE = (
    "UPDATE agent SET disabled_at = NULL, disabled_by = NULL, disabled_reason = NULL, updated_at = :now"
    " WHERE tenant = :tenant AND id = :agent AND disabled_at IS NOT NULL"
)
_WAITING = "tenant = :tenant AND agent = :agent AND agent IS NOT NULL AND state IN ('queued', 'retry_waiting')"
_RESUME = (
    "UPDATE job_state SET due_at = NULL, note = NULL WHERE n IN (SELECT n FROM job_state"
    f" WHERE {_WAITING} AND +state = 'queued' AND due_at IS NOT NULL"
    " AND json_extract(note, '$.held') = 'agent_disabled'"
    " AND NOT EXISTS (SELECT 1 FROM agent WHERE tenant = :tenant AND id = :agent AND disabled_at IS NOT NULL)"
    " LIMIT :want) RETURNING 1"
)
_OF = f"SELECT {Record.columns(Agent, skip=('waiting',))}, 0 FROM agent WHERE tenant = ? AND id = ?"
_DISABLED = (
    "SELECT a.tenant, a.id FROM json_each(?) o JOIN agent a"
    " ON a.tenant = json_extract(o.value, '$[0]') AND a.id = json_extract(o.value, '$[1]')"
    " WHERE a.disabled_at IS NOT NULL"
)
_PUT_OFF = 'UPDATE job_state SET due_at = :until, note = \'{"held": "agent_disabled"}\' WHERE n IN'
_PUT_OFF_THESE = f"{_PUT_OFF} (SELECT value FROM json_each(:numbers))"
# And others of theirs, that the next claims need not come by them.
_PUT_OFF_MORE = (
    f"{_PUT_OFF} (SELECT n FROM job_state WHERE {_WAITING} AND +state = 'queued' AND due_at IS NULL LIMIT 1000)"
)


class AgentVerbs(Reads):
    @flow()
    def register_agent(self, definition: Definition, tenant: str, actor: str | None = None) -> Steps[Agent]:
        new = definition
        now = yield from sign(actor)
        params = {
            "tenant": tenant,
            "id": new.id,
            "name": new.name,
            "kind": new.kind,
            "max_retries": new.max_retries,
            "max_crashes": new.max_crashes,
            "backoff": None if new.backoff is None else json.dumps(new.backoff.to_json()),
            "max_payload_bytes": new.max_payload_bytes,
            "max_wait": new.max_wait,
            "requires_approval": int(new.requires_approval),
            "now": now,
        }
        yield Statement(_REGISTER, params)
        yield from unsign()
        agent = yield from self.agent(new.id, tenant).start()
        assert agent is not None
        return agent

    @flow()
    def disable_agent(self, agent: str, reason: str, actor: str, tenant: str) -> Steps[Agent | None]:
        if not reason.strip():
            raise InvalidInput("an agent is not disabled without a reason", code="reason_required")
        now = yield from sign(actor)
        yield Statement(_DISABLE, {"now": now, "actor": actor, "reason": reason, "tenant": tenant, "agent": agent})
        yield from unsign()
        return (yield from self.agent(agent, tenant).start())

    @flow(writes=False)
    def drain_agent(self, agent: str, tenant: str) -> Steps[bool]:
        """Nothing to wait for: whoever disables an agent has had the write lock."""
        yield from ()
        return True

    @flow()
    def enable_agent(self, agent: str, tenant: str, actor: str | None = None) -> Steps[Agent | None]:
        now = yield from sign(actor)
        yield Statement(_ENABLE, {"now": now, "tenant": tenant, "agent": agent})
        yield from unsign()
        return (yield from self.agent(agent, tenant).start())

    @flow(tells=True)
    def resume_agent(self, agent: str, want: int, tenant: str) -> Steps[int]:
        yield from sign(None)
        rows = yield Statement(_RESUME, {"tenant": tenant, "agent": agent, "want": want})
        yield from unsign()
        return len(rows)


def agents_of(specs: Iterable[JobSpec], tenant: str) -> Steps[dict[str, Agent]]:
    """The agents of a batch that are registered, by their ids. Approval gates read ``requires_approval`` here."""
    found: dict[str, Agent] = {}
    decode = Record.decoder(Agent, SqliteCodec())
    for name in {spec.agent for spec in specs if spec.agent is not None}:
        rows = yield Statement(_OF, (tenant, name))
        if rows:
            found[name] = decode(rows[0])
    return found


def hold_back(picked: Sequence[Row], whose: Sequence[tuple[str, str | None]], now: int) -> Steps[list[Row]]:
    """Of what a claim has picked (the number first), the rows it may take; ``whose`` says each one's tenant and agent.

    Jobs of disabled agents are put off for a while, after which a claim finds them again: nothing is lost if whoever
    enables the agent comes to nothing half-way. It is no step of theirs, and not in the ledger.
    """
    agents = {each for each in whose if each[1] is not None}
    if not agents:
        return list(picked)
    rows = yield Statement(_DISABLED, (json.dumps(list(agents)),))
    disabled = {(tenant, agent) for tenant, agent in rows}
    if not disabled:
        return list(picked)
    until = now + HOLD // MICROSECOND
    held = [row[0] for row, each in zip(picked, whose, strict=True) if each in disabled]
    yield Statement(_PUT_OFF_THESE, {"until": until, "numbers": ids_json(held)})
    for tenant, agent in disabled:
        yield Statement(_PUT_OFF_MORE, {"until": until, "tenant": tenant, "agent": agent})
    return [row for row, each in zip(picked, whose, strict=True) if each not in disabled]
