"""The pages of agents and executors."""

from __future__ import annotations

from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from holdfast.errors import InvalidInput
from holdfast.features.agents.operations import ROLES
from holdfast.features.tokens.model import Scope
from holdfast.server.auth import identity_of
from holdfast.server.pages import (
    action_route,
    check_all_tenants,
    choice_field,
    confirm,
    fields,
    page_route,
    redirect,
    text_field,
)
from holdfast.server.rendering import render, the_app

SHOWN: Final = 500


async def agents(request: Request) -> Response:
    result = await the_app(request).agents.alist(limit=SHOWN + 1)
    return await render(request, "agents.html", agents=result[:SHOWN], more=len(result) > SHOWN)


async def change(request: Request) -> Response:
    """Disable or enable an agent."""
    form, app = await fields(request), the_app(request)
    agent = text_field(form, "agent", 255) or ""
    if form.get("do") == "enable":
        await app.agents.aenable(agent)
        return redirect(request, "/agents", f"Enabled agent {agent}.")
    reason = text_field(form, "reason", 1_000)
    if reason is None:
        raise InvalidInput("Disabling an agent needs a reason.", code="reason_required")
    await app.agents.adisable(agent, reason=reason)
    return redirect(request, "/agents", f"Disabled agent {agent}.")


async def executors(request: Request) -> Response:
    labels = await the_app(request).executors.alist()
    all_tenants = identity_of(request).operates_all
    return await render(request, "executors.html", executors=labels[:SHOWN], roles=ROLES, whole=all_tenants)


async def set_executor(request: Request) -> Response:
    check_all_tenants(request)
    form = await fields(request)
    role = choice_field(form, "role", ROLES)
    added = await the_app(request).executors.aset(text_field(form, "label", 255) or "", role)  # type: ignore[arg-type]
    return redirect(request, "/executors", f"Added {added.label} as {added.role}.")


async def remove_executor(request: Request) -> Response:
    check_all_tenants(request)
    label = text_field(await fields(request), "label", 255) or ""
    question = f"Remove executor {label}? It claims no more jobs."
    if (confirmation := await confirm(request, question, back="/executors")) is not None:
        return confirmation
    await the_app(request).executors.aremove(label)
    return redirect(request, "/executors", f"Removed executor {label}.")


routes = [
    page_route("/agents", agents),
    action_route("/agents", change, Scope.OPERATE),
    page_route("/executors", executors),
    action_route("/executors", set_executor, Scope.ADMIN),
    action_route("/executors/remove", remove_executor, Scope.ADMIN),
]
