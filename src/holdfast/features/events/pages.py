"""Subscriptions and consumers of events."""

from __future__ import annotations

from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from holdfast.errors import InvalidInput
from holdfast.features.tokens.model import Scope
from holdfast.server.pages import ask_first, does, fields, go, said, shows
from holdfast.server.rendering import render, the_app

SHOWN: Final = 200


async def index(request: Request) -> Response:
    app = the_app(request)
    found, consumers = await app.subscriptions.alist(), await app.events.aconsumers()
    return await render(
        request,
        "subscriptions.html",
        subscriptions=found[:SHOWN],
        consumers=consumers[:SHOWN],
        more=max(len(found), len(consumers)) > SHOWN,
    )


async def change(request: Request) -> Response:
    given, app = await fields(request), the_app(request)
    name = said(given, "name", 255) or ""
    match given.get("do"):
        case "pause":
            await app.subscriptions.apause(name, reason=said(given, "reason", 1_000))
            return go(request, "/subscriptions", f"Paused subscription {name}.")
        case "resume":
            await app.subscriptions.aresume(name, skip=bool(given.get("skip")))
            return go(request, "/subscriptions", f"Resumed subscription {name}.")
        case "remove":
            question = f"Remove subscription {name}? Jobs it has made stay."
            if (asks := await ask_first(request, question, back="/subscriptions")) is not None:
                return asks
            await app.subscriptions.aremove(name)
            return go(request, "/subscriptions", f"Removed subscription {name}.")
    raise InvalidInput("do is pause, resume or remove", code="invalid_request")


async def change_consumer(request: Request) -> Response:
    given, app = await fields(request), the_app(request)
    name, do = said(given, "name", 255) or "", given.get("do")
    match do:
        case "beginning":
            question = f"Let consumer {name} read all events again?"
        case "now":
            question = f"Let consumer {name} skip all events until now?"
        case "remove":
            question = f"Remove consumer {name} and its position?"
        case _:
            raise InvalidInput("do is beginning, now or remove", code="invalid_request")
    if (asks := await ask_first(request, question, back="/subscriptions")) is not None:
        return asks
    if do == "remove":
        await app.events.aremove_consumer(name)
        return go(request, "/subscriptions", f"Removed consumer {name}.")
    await app.events.areset_consumer(name, "beginning" if do == "beginning" else "now")
    return go(request, "/subscriptions", f"Reset consumer {name}.")


routes = [
    shows("/subscriptions", index),
    does("/subscriptions", change, Scope.ADMIN),
    does("/consumers", change_consumer, Scope.ADMIN),
]
