"""Agents and executors: who owns jobs, and who may execute them."""

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
    found = await the_app(request).agents.alist(limit=SHOWN + 1)
    return await render(request, "agents.html", agents=found[:SHOWN], more=len(found) > SHOWN)


async def change(request: Request) -> Response:
    """Disable or enable an agent."""
    given, app = await fields(request), the_app(request)
    agent = said(given, "agent", 255) or ""
    if given.get("do") == "enable":
        await app.agents.aenable(agent)
        return go(request, "/agents", f"Enabled agent {agent}.")
    reason = said(given, "reason", 1_000)
    if reason is None:
        raise InvalidInput("Disabling an agent needs a reason.", code="reason_required")
    await app.agents.adisable(agent, reason=reason)
    return go(request, "/agents", f"Disabled agent {agent}.")


async def executors(request: Request) -> Response:
    found = await the_app(request).executors.alist()
    everything = identity_of(request).runs_all
    return await render(request, "executors.html", executors=found[:SHOWN], roles=ROLES, whole=everything)


async def admit(request: Request) -> Response:
    whole(request)
    given = await fields(request)
    role = chosen(given, "role", ROLES)
    added = await the_app(request).executors.aset(said(given, "label", 255) or "", role)  # type: ignore[arg-type]
    return go(request, "/executors", f"Added {added.label} as {added.role}.")


async def dismiss(request: Request) -> Response:
    whole(request)
    label = said(await fields(request), "label", 255) or ""
    question = f"Remove executor {label}? It claims no more jobs."
    if (asks := await ask_first(request, question, back="/executors")) is not None:
        return asks
    await the_app(request).executors.aremove(label)
    return go(request, "/executors", f"Removed executor {label}.")


routes = [
    shows("/agents", agents),
    does("/agents", change, Scope.OPERATE),
    shows("/executors", executors),
    does("/executors", admit, Scope.ADMIN),
    does("/executors/remove", dismiss, Scope.ADMIN),
]
