"""The webhooks pages: webhooks, their deliveries, and sending a message again."""

from __future__ import annotations

from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from holdfast.errors import InvalidInput
from holdfast.features.tokens.model import Scope
from holdfast.features.webhooks.model import NOTICES
from holdfast.server.pages import PAGE, action_route, confirm, fields, page_route, redirect, text_field
from holdfast.server.rendering import render, the_app

REASON: Final = 1_000


async def index(request: Request) -> Response:
    webhooks = await the_app(request).webhooks.alist()
    return await render(request, "webhooks.html", webhooks=webhooks[:500], notices=NOTICES)


async def show(request: Request) -> Response:
    app, query = the_app(request), request.query_params
    webhook = await app.webhooks.aget(request.path_params["name"])
    failed, before = bool(query.get("failed")), text_field(query, "before", 50)
    log = await app.webhooks.adeliveries(webhook.name, failed=failed, before=before, limit=PAGE + 1)
    return await render(
        request,
        "webhook.html",
        webhook=webhook,
        deliveries=log[:PAGE],
        following=log[PAGE - 1].id if len(log) > PAGE else None,
        failed=failed,
    )


async def add(request: Request) -> Response:
    """Add a webhook. The form has only the names of secrets: their values are in the environment of the workers."""
    given = await fields(request)
    webhook = await the_app(request).webhooks.aadd(
        text_field(given, "name", 255) or "",
        text_field(given, "url", 2_000) or "",
        secrets=_words(given, "secrets"),
        wants=_words(given, "wants") or None,
        kind=text_field(given, "kind", 255),
    )
    return redirect(request, f"/webhooks/{webhook.name}", f"Added webhook {webhook.name}.")


async def change(request: Request) -> Response:
    """Disable or enable a webhook, add a secret, or remove it."""
    given, webhooks = await fields(request), the_app(request).webhooks
    webhook = await webhooks.aget(request.path_params["name"])
    here = f"/webhooks/{webhook.name}"
    match given.get("do"):
        case "disable":
            await webhooks.adisable(webhook.name, reason=text_field(given, "reason", REASON) or "")
            return redirect(request, here, f"Disabled webhook {webhook.name}.")
        case "enable":
            await webhooks.aenable(webhook.name, skip=bool(given.get("skip")))
            return redirect(request, here, f"Enabled webhook {webhook.name}.")
        case "rotate":
            await webhooks.arotate_secret(webhook.name, text_field(given, "secret", 255) or "")
            return redirect(request, here, "Added the signing secret.")
        case "remove":
            question = f"Remove webhook {webhook.name} and its delivery log?"
            if (confirmation := await confirm(request, question, back=here)) is not None:
                return confirmation
            await webhooks.aremove(webhook.name)
            return redirect(request, "/webhooks", f"Removed webhook {webhook.name}.")
    raise InvalidInput("`do` must be one of disable, enable, rotate, remove", code="invalid_request")


async def send(request: Request) -> Response:
    """Send a ping, or a previous message again."""
    given, webhooks = await fields(request), the_app(request).webhooks
    webhook = await webhooks.aget(request.path_params["name"])
    message = text_field(given, "message", 255)
    if message is None:
        job = await webhooks.atest(webhook.name)
    else:
        job = await webhooks.aresend(webhook.name, message)
    return redirect(request, f"/jobs/{job}", "This job sends the message.")


def _words(given: dict[str, str], name: str) -> list[str]:
    return (text_field(given, name, 2_000) or "").replace(",", " ").split()


routes = [
    page_route("/webhooks", index),
    action_route("/webhooks", add, Scope.ADMIN),
    page_route("/webhooks/{name}", show),
    action_route("/webhooks/{name}", change, Scope.ADMIN),
    action_route("/webhooks/{name}/send", send, Scope.OPERATE),
]
