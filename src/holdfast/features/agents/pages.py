"""The pages of agents and executors."""

from __future__ import annotations

from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from holdfast.errors import InvalidInput
from holdfast.features.agents.operations import ROLES
from holdfast.features.tokens.model import Scope
from holdfast.server.auth import identity_of
from holdfast.server.pages import ask_first, chosen, does, fields, go, said, shows, whole
from holdfast.server.rendering import render, the_app

SHOWN: Final = 500


async def agents(request: Request) -> Response:
    result = await the_app(request).agents.alist(limit=SHOWN + 1)
    return await render(request, "agents.html", agents=result[:SHOWN], more=len(result) > SHOWN)


async def change(request: Request) -> Response:
    """Disable or enable an agent."""
    form, app = await fields(request), the_app(request)
    agent = said(form, "agent", 255) or ""
    if form.get("do") == "enable":
        await app.agents.aenable(agent)
        return go(request, "/agents", f"Enabled agent {agent}.")
    reason = said(form, "reason", 1_000)
    if reason is None:
        raise InvalidInput("Disabling an agent needs a reason.", code="reason_required")
    await app.agents.adisable(agent, reason=reason)
    return go(request, "/agents", f"Disabled agent {agent}.")


async def executors(request: Request) -> Response:
    labels = await the_app(request).executors.alist()
    all_tenants = identity_of(request).runs_all
    return await render(request, "executors.html", executors=labels[:SHOWN], roles=ROLES, whole=all_tenants)


async def add_executor(request: Request) -> Response:
    whole(request)
    form = await fields(request)
    role = chosen(form, "role", ROLES)
    added = await the_app(request).executors.aset(said(form, "label", 255) or "", role)  # type: ignore[arg-type]
    return go(request, "/executors", f"Added {added.label} as {added.role}.")


async def remove_executor(request: Request) -> Response:
    whole(request)
    label = said(await fields(request), "label", 255) or ""
    question = f"Remove executor {label}? It claims no more jobs."
    if (confirmation := await ask_first(request, question, back="/executors")) is not None:
        return confirmation
    await the_app(request).executors.aremove(label)
    return go(request, "/executors", f"Removed executor {label}.")


routes = [
    shows("/agents", agents),
    does("/agents", change, Scope.OPERATE),
    shows("/executors", executors),
    does("/executors", add_executor, Scope.ADMIN),
    does("/executors/remove", remove_executor, Scope.ADMIN),
]
