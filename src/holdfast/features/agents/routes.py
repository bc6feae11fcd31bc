"""/agents, /executors."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query
from pydantic import Field

from holdfast.engine.names import PagePosition
from holdfast.features.agents.model import Agent, Executor, ExecutorRole
from holdfast.features.tokens.model import Scope
from holdfast.server.bodies import Body, LongText, RetryPolicy, RetryPreset, Span, Text
from holdfast.server.json_body import Router
from holdfast.server.parameters import (
    PAGE,
    After,
    Limit,
    NamePath,
    Page,
    TheApp,
    allowed,
    allowed_all_tenants,
    allowed_one_tenant,
    paged,
)

router = Router(prefix="/agents", tags=["agents"])


class Register(Body):
    """An omitted field gets its default value."""

    name: Text | None = None
    kind: Text | None = None
    retry: RetryPreset | RetryPolicy | None = None
    max_payload: int | Annotated[str, Field(max_length=50)] | None = Field(default=None, examples=["64KB"])
    max_wait: Span | None = None
    requires_approval: bool = False


class Disable(Body):
    reason: LongText


@router.get("", dependencies=[allowed(Scope.READ)], response_model=Page[Agent])
async def list_agents(
    app: TheApp,
    kind: Annotated[str | None, Query(max_length=255)] = None,
    disabled: bool | None = None,
    after: After = None,
    limit: Limit = PAGE,
) -> Page[Agent]:
    """List agents by id."""
    scope = app._session.tenant
    agents = await app.agents.alist(
        kind=kind, disabled=disabled, after=PagePosition.read(after, scope), limit=limit + 1
    )
    return paged(agents, limit, lambda agent: PagePosition(agent.tenant, agent.id).cursor(scope))


@router.post("/{agent:path}/disable", dependencies=[allowed_one_tenant(Scope.ADMIN)], response_model=Agent)
async def disable_agent(app: TheApp, agent: NamePath, body: Disable) -> Agent:
    """Disable an agent: refuse new jobs for it. Running jobs finish."""
    return await app.agents.adisable(agent, reason=body.reason)


@router.post("/{agent:path}/enable", dependencies=[allowed_one_tenant(Scope.ADMIN)], response_model=Agent)
async def enable_agent(app: TheApp, agent: NamePath) -> Agent:
    return await app.agents.aenable(agent)


@router.get("/{agent:path}", dependencies=[allowed(Scope.READ)], response_model=Agent)
async def show_agent(app: TheApp, agent: NamePath) -> Agent:
    return await app.agents.aget(agent)


@router.put("/{agent:path}", dependencies=[allowed_one_tenant(Scope.ADMIN)], response_model=Agent)
async def register_agent(app: TheApp, agent: NamePath, body: Register) -> Agent:
    """Register or redefine an agent. Repeating the same request changes nothing."""
    options = body.given()
    if isinstance(options.get("retry"), RetryPolicy):
        options["retry"] = options["retry"].policy()
    return await app.agents.aset(agent, **options)


executor_router = Router(prefix="/executors", tags=["executors"])


class AddExecutor(Body):
    role: ExecutorRole = "executor"


@executor_router.get("", dependencies=[allowed(Scope.READ)], response_model=Page[Executor])
async def list_executors(app: TheApp) -> Page[Executor]:
    """List the allowed executor labels. While the list is empty, the policy `empty_executors` decides."""
    return Page(items=await app.executors.alist())


@executor_router.put("/{label:path}", dependencies=[allowed_all_tenants(Scope.ADMIN)], response_model=Executor)
async def add_executor(app: TheApp, label: NamePath, body: AddExecutor | None = None) -> Executor:
    """Add a label to the allowlist. An executor may claim jobs; a generator only plans them."""
    return await app.executors.aset(label, "executor" if body is None else body.role)


@executor_router.delete("/{label:path}", dependencies=[allowed_all_tenants(Scope.ADMIN)], status_code=204)
async def remove_executor(app: TheApp, label: NamePath) -> None:
    """Remove a label from the allowlist. Its running jobs may finish; it can claim no more."""
    await app.executors.aremove(label)
