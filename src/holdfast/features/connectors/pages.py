"""The connectors page: which hosts and secrets the built-in kinds may use."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from holdfast.features.tokens.model import Scope
from holdfast.server.pages import action_route, confirm, fields, page_route, redirect, text_field
from holdfast.server.rendering import render, the_app


async def index(request: Request) -> Response:
    return await render(request, "connectors.html", connectors=await the_app(request).connectors.alist())


async def change(request: Request) -> Response:
    """Save hosts, secrets and whether it is enabled; headers and sizes keep their values."""
    form, app = await fields(request), the_app(request)
    name = text_field(form, "name", 255) or ""
    hosts, secrets = (
        (text_field(form, field, 2_000) or "").replace(",", " ").split() for field in ("hosts", "secrets")
    )
    await app.connectors.aset(name, hosts=hosts, secrets=secrets, enabled=form.get("enabled") != "no")
    return redirect(request, "/connectors", f"Saved connector {name}.")


async def remove(request: Request) -> Response:
    name = text_field(await fields(request), "name", 255) or ""
    question = f"Remove the settings of connector {name}? Only the policy of the workers applies then."
    if (confirmation := await confirm(request, question, back="/connectors")) is not None:
        return confirmation
    await the_app(request).connectors.aremove(name)
    return redirect(request, "/connectors", f"Removed the settings of connector {name}.")


routes = [
    page_route("/connectors", index),
    action_route("/connectors", change, Scope.ADMIN),
    action_route("/connectors/remove", remove, Scope.ADMIN),
]
