"""The connectors page: which hosts and secrets the built-in kinds may use."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from holdfast.features.tokens.model import Scope
from holdfast.server.pages import ask_first, does, fields, go, said, shows
from holdfast.server.rendering import render, the_app


async def index(request: Request) -> Response:
    return await render(request, "connectors.html", connectors=await the_app(request).connectors.alist())


async def change(request: Request) -> Response:
    """Save hosts, secrets and whether it is enabled; headers and sizes keep their values."""
    form, app = await fields(request), the_app(request)
    name = said(form, "name", 255) or ""
    hosts, secrets = ((said(form, field, 2_000) or "").replace(",", " ").split() for field in ("hosts", "secrets"))
    await app.connectors.aset(name, hosts=hosts, secrets=secrets, enabled=form.get("enabled") != "no")
    return go(request, "/connectors", f"Saved connector {name}.")


async def remove(request: Request) -> Response:
    name = said(await fields(request), "name", 255) or ""
    question = f"Remove the settings of connector {name}? Only the policy of the workers applies then."
    if (confirmation := await ask_first(request, question, back="/connectors")) is not None:
        return confirmation
    await the_app(request).connectors.aremove(name)
    return go(request, "/connectors", f"Removed the settings of connector {name}.")


routes = [
    shows("/connectors", index),
    does("/connectors", change, Scope.ADMIN),
    does("/connectors/remove", remove, Scope.ADMIN),
]
