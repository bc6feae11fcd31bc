"""``app.agents``, ``app.executors``."""

from __future__ import annotations

from typing import TypeVar, Unpack

from holdfast.engine.names import Paging, check_name
from holdfast.engine.settlement import storable
from holdfast.errors import Conflict, InvalidInput, InvalidSetting, NotFound
from holdfast.features.agents.model import NAME_LIMIT, Agent, AgentOptions, Definition, Executor, ExecutorRole
from holdfast.stores.flow import Flow
from holdfast.stores.port import Caller

T = TypeVar("T")

BATCH = 1000

_Agents = list[Agent]  # inside the class the word is a method


class Agents:
    """Each call has two colours: the one that begins with ``a`` is awaited."""

    def __init__(self, caller: Caller) -> None:
        self._caller = caller

    def register(self, id: str, **definition: Unpack[AgentOptions]) -> Agent:
        """Register an agent, or define one anew: what is not said is as for a new one. Repeating it changes nothing.

        ``kind`` is the only kind its jobs may be of. ``retry`` is their policy unless a job is given its own: a
        ``Retry``, or the name of a preset for the backoff alone. ``max_payload`` (bytes or "64KB") and ``max_wait``
        (how long a job may wait to be started) are kept by the database.
        """
        return self._caller.run(self._register(Definition.of(id, **definition)))

    async def aregister(self, id: str, **definition: Unpack[AgentOptions]) -> Agent:
        return await self._caller.arun(self._register(Definition.of(id, **definition)))

    def get(self, id: str) -> Agent | None:
        return self._caller.run(self._caller.store.agents.get(id, self._caller.tenant))

    async def aget(self, id: str) -> Agent | None:
        return await self._caller.arun(self._caller.store.agents.get(id, self._caller.tenant))

    def list(self, *, kind: str | None = None, disabled: bool | None = None, **page: Unpack[Paging]) -> _Agents:
        """By their ids: all, those for one kind, the disabled ones or the others."""
        return self._caller.run(self._caller.store.agents.list(self._caller.tenant, kind, disabled, **page))

    async def alist(self, *, kind: str | None = None, disabled: bool | None = None, **page: Unpack[Paging]) -> _Agents:
        return await self._caller.arun(self._caller.store.agents.list(self._caller.tenant, kind, disabled, **page))

    def disable(self, id: str, *, reason: str) -> Agent:
        """Take no more work for an agent: when this has returned no job can be enqueued for it, nor one be begun that
        waits. What is running goes on. Whoever disabled it first stands."""
        agent = _found(id, self._caller.run(self._disable(id, reason)))
        return _drained(agent, self._caller.run(self._drain(id)))

    async def adisable(self, id: str, *, reason: str) -> Agent:
        agent = _found(id, await self._caller.arun(self._disable(id, reason)))
        return _drained(agent, await self._caller.arun(self._drain(id)))

    def enable(self, id: str) -> Agent:
        """Take work for it again; what waits can be begun at once."""
        agent = _found(id, self._caller.run(self._enable(id)))
        while self._caller.run(self._resume(id)) == BATCH:
            pass
        return agent

    async def aenable(self, id: str) -> Agent:
        agent = _found(id, await self._caller.arun(self._enable(id)))
        while await self._caller.arun(self._resume(id)) == BATCH:
            pass
        return agent

    def _register(self, definition: Definition) -> Flow[Agent]:
        return self._caller.store.agents.set(definition, self._caller.tenant, self._caller.actor)

    def _disable(self, id: str, reason: str) -> Flow[Agent | None]:
        why = storable(reason)
        if why is None or not why.strip():
            raise InvalidInput("an agent is not disabled without a reason", code="reason_required")
        caller = self._caller
        return caller.store.agents.disable(_named(id), why, caller.actor, caller.tenant)

    def _drain(self, id: str) -> Flow[bool]:
        return self._caller.store.agents.drain(id, self._caller.tenant)

    def _enable(self, id: str) -> Flow[Agent | None]:
        return self._caller.store.agents.enable(_named(id), self._caller.tenant, self._caller.actor)

    def _resume(self, id: str) -> Flow[int]:
        return self._caller.store.agents.resume(id, BATCH, self._caller.tenant)


def _named(id: str) -> str:
    return check_name(id, "agent", limit=NAME_LIMIT)


def _found(id: str, agent: Agent | None) -> Agent:
    if agent is None:
        raise NotFound(
            f"there is no agent {id} in this tenant",
            code="agent_not_found",
            fix="Register it: app.agents.register(…), or holdfast agents register",
        )
    return agent


def _drained(agent: Agent, drained: bool) -> Agent:
    if not drained:
        raise Conflict(
            f"agent {agent.id} is disabled, but a transaction that used an agent before is still open",
            code="agent_in_use",
            fix="End that transaction, then disable the agent once more: if it succeeds, nothing more comes in.",
        )
    return agent


_Executors = list[Executor]  # inside the class the word is a method

ROLES: tuple[ExecutorRole, ...] = ("executor", "generator")


class Executors:
    """While the list is empty every label may execute. From its first entry on only those may that are on it."""

    def __init__(self, caller: Caller) -> None:
        self._caller = caller

    def add(self, label: str, role: ExecutorRole = "executor") -> Executor:
        """Put a label on the list: an ``executor`` may take jobs, a ``generator`` plans work and never may."""
        if role not in ROLES:
            raise InvalidSetting(f"a role is executor or generator, not {role!r}", code="invalid_role")
        caller = self._caller
        return caller.run(caller.store.executors.add(check_name(label, "executor"), role, caller.actor))

    def list(self) -> _Executors:
        return self._caller.run(self._caller.store.executors.list())

    def remove(self, label: str) -> None:
        """Take it off the list. What it runs may end; it takes nothing more."""
        if not self._caller.run(self._caller.store.executors.remove(label, self._caller.actor)):
            raise NotFound(f"{label} is not on the list of executors", code="executor_not_found")
