"""Agents: for whom jobs are, what they are held to, and whether they get any."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import Query
from pydantic import Field

from holdfast.access import Scope
from holdfast.api.answers import PAGE, After, Limit, NamePath, Page, paged
from holdfast.api.asking import TheApp, allowed, allowed_one
from holdfast.api.bodies import Body, RetryPolicy, Span, Text, Words
from holdfast.api.routing import Router
from holdfast.engine.names import Place
from holdfast.errors import NotFound
from holdfast.features.agents.model import Agent

router = Router(prefix="/agents", tags=["agents"])


class Register(Body):
    """What is not said is as for a new one."""

    name: Text | None = None
    kind: Text | None = None
    retry: Literal["exponential", "gentle", "hourly_cap"] | RetryPolicy | None = None
    max_payload: int | Annotated[str, Field(max_length=50)] | None = Field(default=None, examples=["64KB"])
    max_wait: Span | None = None
    requires_approval: bool = False


class Disable(Body):
    reason: Words


@router.get("", dependencies=[allowed(Scope.READ)], response_model=Page[Agent])
async def list_agents(
    app: TheApp,
    kind: Annotated[str | None, Query(max_length=255)] = None,
    disabled: bool | None = None,
    after: After = None,
    limit: Limit = PAGE,
) -> Page[Agent]:
    """By their ids."""
    scope = app.client.tenant
    found = await app.agents.alist(kind=kind, disabled=disabled, after=Place.read(after, scope), limit=limit + 1)
    return paged(found, limit, lambda each: Place(each.tenant, each.id).cursor(scope))


@router.post("/{agent:path}/disable", dependencies=[allowed_one(Scope.ADMIN)], response_model=Agent)
async def disable_agent(app: TheApp, agent: NamePath, body: Disable) -> Agent:
    """Take no more work for it; what is running goes on."""
    return await app.agents.adisable(agent, reason=body.reason)


@router.post("/{agent:path}/enable", dependencies=[allowed_one(Scope.ADMIN)], response_model=Agent)
async def enable_agent(app: TheApp, agent: NamePath) -> Agent:
    return await app.agents.aenable(agent)


@router.get("/{agent:path}", dependencies=[allowed(Scope.READ)], response_model=Agent)
async def show_agent(app: TheApp, agent: NamePath) -> Agent:
    found = await app.agents.aget(agent)
    if found is None:
        raise NotFound(f"there is no agent {agent} in this tenant", code="agent_not_found")
    return found


@router.put("/{agent:path}", dependencies=[allowed_one(Scope.ADMIN)], response_model=Agent)
async def register_agent(app: TheApp, agent: NamePath, body: Register) -> Agent:
    """Register it, or define it anew. Repeating it changes nothing."""
    given = body.given()
    if isinstance(given.get("retry"), RetryPolicy):
        given["retry"] = given["retry"].policy()
    return await app.agents.aregister(agent, **given)
