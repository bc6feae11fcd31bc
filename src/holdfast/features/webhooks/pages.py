"""Endpoints: who is told of events by webhooks, what became of the messages, and sending one again."""

from __future__ import annotations

from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from holdfast.errors import InvalidInput
from holdfast.features.tokens.model import Scope
from holdfast.features.webhooks.model import NOTICES
from holdfast.features.webhooks.operations import Looking
from holdfast.server.pages import PAGE, ask_first, does, fields, go, said, shows
from holdfast.server.rendering import render, the_app

REASON: Final = 1_000


async def index(request: Request) -> Response:
    found = await the_app(request).webhooks.alist()
    return await render(request, "endpoints.html", endpoints=found[:500], notices=NOTICES)


async def show(request: Request) -> Response:
    app, asked = the_app(request), request.query_params
    endpoint = await app.webhooks.aget(request.path_params["name"])
    wanted: Looking = {"limit": PAGE + 1, "failed": bool(asked.get("failed"))}
    before = said(asked, "before", 50)
    if before is not None:
        wanted["before"] = before
    log = await app.webhooks.adeliveries(endpoint.name, **wanted)
    return await render(
        request,
        "endpoint.html",
        endpoint=endpoint,
        deliveries=log[:PAGE],
        following=log[PAGE - 1].id if len(log) > PAGE else None,
        failed=wanted["failed"],
    )


async def add(request: Request) -> Response:
    """Of secrets only the names: what they are is in the environment of the workers."""
    given = await fields(request)
    made = await the_app(request).webhooks.aadd(
        said(given, "name", 255) or "",
        said(given, "url", 2_000) or "",
        secrets=_words(given, "secrets"),
        wants=_words(given, "wants") or None,
        kind=said(given, "kind", 255),
    )
    return go(request, f"/endpoints/{made.name}", f"Added webhook {made.name}.")


async def set_up(request: Request) -> Response:
    """Disable, enable, give it another secret, remove."""
    given, endpoints = await fields(request), the_app(request).webhooks
    endpoint = await endpoints.aget(request.path_params["name"])
    here = f"/endpoints/{endpoint.name}"
    match given.get("do"):
        case "disable":
            await endpoints.adisable(endpoint.name, reason=said(given, "reason", REASON) or "")
            return go(request, here, f"Disabled webhook {endpoint.name}.")
        case "enable":
            await endpoints.aenable(endpoint.name, skip=bool(given.get("skip")))
            return go(request, here, f"Enabled webhook {endpoint.name}.")
        case "rotate":
            await endpoints.arotate_secret(endpoint.name, said(given, "secret", 255) or "")
            return go(request, here, "Added the signing secret.")
        case "remove":
            question = f"Remove webhook {endpoint.name} and its delivery log?"
            if (asks := await ask_first(request, question, back=here)) is not None:
                return asks
            await endpoints.aremove(endpoint.name)
            return go(request, "/endpoints", f"Removed webhook {endpoint.name}.")
    raise InvalidInput("do is disable, enable, rotate or remove", code="invalid_request")


async def send(request: Request) -> Response:
    """A ping, or a message that was sent before."""
    given, endpoints = await fields(request), the_app(request).webhooks
    endpoint = await endpoints.aget(request.path_params["name"])
    message = said(given, "message", 255)
    if message is None:
        job = await endpoints.atest(endpoint.name)
    else:
        job = await endpoints.aresend(endpoint.name, message)
    return go(request, f"/jobs/{job}", "This job sends the message.")


def _words(given: dict[str, str], name: str) -> list[str]:
    return (said(given, name, 2_000) or "").replace(",", " ").split()


routes = [
    shows("/endpoints", index),
    does("/endpoints", add, Scope.ADMIN),
    shows("/endpoints/{name}", show),
    does("/endpoints/{name}", set_up, Scope.ADMIN),
    does("/endpoints/{name}/send", send, Scope.OPERATE),
]
