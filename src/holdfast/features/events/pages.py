"""The page of subscriptions and consumers."""

from __future__ import annotations

from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from holdfast.errors import InvalidInput
from holdfast.features.tokens.model import Scope
from holdfast.server.pages import action_route, confirm, fields, page_route, redirect, text_field
from holdfast.server.rendering import render, the_app

SHOWN: Final = 200


async def index(request: Request) -> Response:
    app = the_app(request)
    subscriptions, consumers = await app.subscriptions.alist(), await app.consumers.alist()
    return await render(
        request,
        "subscriptions.html",
        subscriptions=subscriptions[:SHOWN],
        consumers=consumers[:SHOWN],
        more=max(len(subscriptions), len(consumers)) > SHOWN,
    )


async def change(request: Request) -> Response:
    form, app = await fields(request), the_app(request)
    name = text_field(form, "name", 255) or ""
    match form.get("do"):
        case "pause":
            await app.subscriptions.apause(name, reason=text_field(form, "reason", 1_000))
            return redirect(request, "/subscriptions", f"Paused subscription {name}.")
        case "resume":
            await app.subscriptions.aresume(name, skip=bool(form.get("skip")))
            return redirect(request, "/subscriptions", f"Resumed subscription {name}.")
        case "remove":
            question = f"Remove subscription {name}? Jobs it has made stay."
            if (confirmation := await confirm(request, question, back="/subscriptions")) is not None:
                return confirmation
            await app.subscriptions.aremove(name)
            return redirect(request, "/subscriptions", f"Removed subscription {name}.")
    raise InvalidInput("do must be one of pause, resume, remove", code="invalid_request")


async def change_consumer(request: Request) -> Response:
    form, app = await fields(request), the_app(request)
    name, do = text_field(form, "name", 255) or "", form.get("do")
    match do:
        case "beginning":
            question = f"Let consumer {name} read all events again?"
        case "now":
            question = f"Let consumer {name} skip all events until now?"
        case "remove":
            question = f"Remove consumer {name} and its position?"
        case _:
            raise InvalidInput("do must be one of beginning, now, remove", code="invalid_request")
    if (confirmation := await confirm(request, question, back="/subscriptions")) is not None:
        return confirmation
    if do == "remove":
        await app.consumers.aremove(name)
        return redirect(request, "/subscriptions", f"Removed consumer {name}.")
    await app.consumers.areset(name, "beginning" if do == "beginning" else "now")
    return redirect(request, "/subscriptions", f"Reset consumer {name}.")


routes = [
    page_route("/subscriptions", index),
    action_route("/subscriptions", change, Scope.ADMIN),
    action_route("/consumers", change_consumer, Scope.ADMIN),
]
