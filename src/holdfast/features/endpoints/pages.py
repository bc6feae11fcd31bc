"""The endpoints page: URLs that receive webhooks of providers."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from holdfast.features.endpoints.verification import PROVIDERS
from holdfast.features.tokens.model import Scope
from holdfast.server.pages import action_route, choice_field, confirm, fields, page_route, redirect, text_field
from holdfast.server.rendering import render, the_app


async def index(request: Request) -> Response:
    return await render(request, "endpoints.html", endpoints=await the_app(request).endpoints.alist())


async def change(request: Request) -> Response:
    """Save an endpoint. The form has only the names of secrets: their values are in the environment of the service."""
    form = await fields(request)
    name, provider = text_field(form, "name", 60) or "", choice_field(form, "provider", tuple(PROVIDERS))
    secrets = (text_field(form, "secrets", 600) or "").replace(",", " ").split()
    options: dict[str, Any] = {each: text_field(form, each, 255) for each in ("event", "kind", "queue")}
    options |= {"provider": provider, "enabled": form.get("enabled") != "no"}
    endpoint = await the_app(request).endpoints.aset(name, secrets=secrets, **options)
    return redirect(request, "/endpoints", f"Saved endpoint {endpoint.name}.")


async def remove(request: Request) -> Response:
    name = text_field(await fields(request), "name", 60) or ""
    question = f"Remove endpoint {name}? Its messages are refused from then on."
    if (confirmation := await confirm(request, question, back="/endpoints")) is not None:
        return confirmation
    await the_app(request).endpoints.aremove(name)
    return redirect(request, "/endpoints", f"Removed endpoint {name}.")


routes = [
    page_route("/endpoints", index),
    action_route("/endpoints", change, Scope.ADMIN),
    action_route("/endpoints/remove", remove, Scope.ADMIN),
]
