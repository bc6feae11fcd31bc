"""``app.agents``, ``app.executors``."""

from __future__ import annotations

from typing import Annotated, Unpack

from holdfast.engine.declared import Help, http
from holdfast.engine.names import NamedKind, Paging, check_name, kind_name
from holdfast.engine.operation import Program, awaited, operation
from holdfast.engine.settlement import storable
from holdfast.errors import Conflict, InvalidInput, InvalidSetting, NotFound
from holdfast.features.agents.model import NAME_LIMIT, Agent, AgentOptions, Definition, Executor, ExecutorRole
from holdfast.stores.flow import run
from holdfast.stores.namespace import StoreNamespace

BATCH = 1000

AgentId = Annotated[str, Help("The agent's id, which jobs refer to.", "ID")]
Reason = Annotated[str, Help("The reason, shown to callers whose job is refused.", longest=2_000)]
Role = Annotated[ExecutorRole, Help("An executor may claim jobs; a generator only plans them.")]
Label = Annotated[str, Help("The label a worker passes as --executor.", "LABEL")]

_Agents = list[Agent]  # inside the class, `list` is an operation


class Agents(StoreNamespace):
    """An agent is a named owner of jobs, with its own retry policy and limits."""

    @operation
    @http("PUT /agents/{id}", "admin", tenant="one")
    def set(self, id: AgentId, **definition: Unpack[AgentOptions]) -> Program[Agent]:
        """Register an agent, or replace its definition: an option that is not given has its default value.

        ``kind`` is the only kind its jobs may have. ``retry`` is the policy of its jobs unless a job has its own: a
        ``Retry``, or the name of a preset for the backoff alone. The database enforces ``max_payload`` (bytes or
        "64KB") and ``max_wait`` (how long a job may wait to be started).
        """
        return (yield from run(self._store.agents.set(Definition.of(id, **definition), self._tenant, self._actor)))

    aset = awaited(set)

    @operation
    @http("GET /agents/{id}", "read", name="show_agent")
    def get(self, id: AgentId) -> Program[Agent]:
        """Show an agent: its settings, its limits and whether it is disabled."""
        return _existing(id, (yield from run(self._store.agents.get(id, self._tenant))))

    aget = awaited(get)

    @operation
    @http("GET /agents", "read", page="id")
    def list(
        self,
        *,
        kind: Annotated[str | NamedKind | None, Help("Only agents for this kind.")] = None,
        disabled: Annotated[
            bool | None, Help("Only disabled agents, or only enabled ones.", option="--disabled/--enabled")
        ] = None,
        **page: Unpack[Paging],
    ) -> Program[_Agents]:
        """List agents by id."""
        return (yield from run(self._store.agents.list(self._tenant, kind_name(kind), disabled, **page)))

    alist = awaited(list)

    @operation
    @http("POST /agents/{id}/disable", "admin", tenant="one", example={"reason": "too many requests"})
    def disable(
        self,
        id: AgentId,
        *,
        reason: Reason,
    ) -> Program[Agent]:
        """Stop accepting and starting jobs of an agent. When this returns, no job can be enqueued for it and no waiting
        job of it can start. Running jobs continue. The first reason given is kept."""
        text = storable(reason)
        if text is None or not text.strip():
            raise InvalidInput("disabling an agent needs a reason", code="reason_required")
        agent = yield from run(self._store.agents.disable(_named(id), text, self._actor, self._tenant))
        return _drained(_existing(id, agent), (yield from run(self._store.agents.drain(id, self._tenant))))

    adisable = awaited(disable)

    @operation
    @http("POST /agents/{id}/enable", "admin", tenant="one")
    def enable(self, id: AgentId) -> Program[Agent]:
        """Accept and start jobs of the agent again. Its waiting jobs can start at once."""
        agent = _existing(id, (yield from run(self._store.agents.enable(_named(id), self._tenant, self._actor))))
        while (yield from run(self._store.agents.resume(id, BATCH, self._tenant))) == BATCH:
            pass
        return agent

    aenable = awaited(enable)


def _named(id: str) -> str:
    return check_name(id, "agent", limit=NAME_LIMIT)


def _existing(id: str, agent: Agent | None) -> Agent:
    if agent is None:
        raise NotFound(
            f"no agent {id} in this tenant",
            code="agent_not_found",
            fix="Register it with app.agents.set(…) or holdfast agents set.",
        )
    return agent


def _drained(agent: Agent, drained: bool) -> Agent:
    if not drained:
        raise Conflict(
            f"agent {agent.id} is disabled, but an open transaction used an agent before and may still enqueue",
            code="agent_in_use",
            fix="End that transaction, then disable the agent again.",
        )
    return agent


_Executors = list[Executor]  # inside the class, `list` is an operation

ROLES: tuple[ExecutorRole, ...] = ("executor", "generator")


class Executors(StoreNamespace):
    """The list of labels that may execute jobs. While it is empty, every label may."""

    @operation
    @http("PUT /executors/{label}", "admin", tenant="all", example={"role": "executor"})
    def set(
        self,
        label: Label,
        role: Role = "executor",
    ) -> Program[Executor]:
        """Add a label to the list, or change its role. An ``executor`` may claim jobs; a ``generator`` plans work and
        may not."""
        if role not in ROLES:
            raise InvalidSetting(f"a role must be executor or generator, not {role!r}", code="invalid_role")
        return (yield from run(self._store.executors.set(check_name(label, "executor"), role, self._actor)))

    aset = awaited(set)

    @operation
    @http("GET /executors", "read")
    def list(self) -> Program[_Executors]:
        """List the allowed executor labels. While the list is empty, the policy ``empty_executors`` decides."""
        return (yield from run(self._store.executors.list()))

    alist = awaited(list)

    @operation
    @http("DELETE /executors/{label}", "admin", tenant="all")
    def remove(self, label: Label) -> Program[None]:
        """Remove a label from the list. Its running jobs may finish; it can claim no more."""
        if not (yield from run(self._store.executors.remove(label, self._actor))):
            raise NotFound(f"executor {label} is not on the allowlist", code="executor_not_found")

    aremove = awaited(remove)
