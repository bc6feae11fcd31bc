"""The notifiers page: channels that tell people what needs them."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from holdfast.errors import InvalidInput
from holdfast.features.notifiers.model import CHANNELS, WANTS
from holdfast.features.tokens.model import Scope
from holdfast.server.pages import action_route, choice_field, confirm, fields, page_route, redirect, text_field
from holdfast.server.rendering import render, the_app


async def index(request: Request) -> Response:
    return await render(
        request, "notifiers.html", notifiers=await the_app(request).notifiers.alist(), wants=tuple(WANTS)
    )


async def change(request: Request) -> Response:
    """Save a notifier. The form has only the names of secrets: their values are in the environment of the workers."""
    form = await fields(request)
    options: dict[str, Any] = {each: _words(form, each) for each in ("secrets", "recipients")}
    options |= {each: text_field(form, each, 2_000) for each in ("sender", "dashboard", "quiet", "kind")}
    options |= {each: text_field(form, each, 60) for each in ("escalate_after", "escalation")}
    options |= {"wants": _words(form, "wants") or list(WANTS), "channel": choice_field(form, "channel", CHANNELS)}
    options["enabled"] = form.get("enabled") != "no"
    notifier = await the_app(request).notifiers.aset(text_field(form, "name", 60) or "", **options)
    return redirect(request, "/notifiers", f"Saved notifier {notifier.name}.")


async def act(request: Request) -> Response:
    form, notifiers = await fields(request), the_app(request).notifiers
    name = text_field(form, "name", 60) or ""
    if form.get("do") == "remove":
        question = f"Remove notifier {name}? People are told nothing more by it."
        if (confirmation := await confirm(request, question, back="/notifiers")) is not None:
            return confirmation
        await notifiers.aremove(name)
        return redirect(request, "/notifiers", f"Removed notifier {name}.")
    if form.get("do") == "test":
        job = await notifiers.atest(name)
        return redirect(request, f"/jobs/{job}", "This job sends the message.")
    raise InvalidInput("`do` must be one of remove, test", code="invalid_request")


def _words(form: dict[str, str], name: str) -> list[str]:
    return (text_field(form, name, 2_000) or "").replace(",", " ").split()


routes = [
    page_route("/notifiers", index),
    action_route("/notifiers", change, Scope.ADMIN),
    action_route("/notifiers/act", act, Scope.ADMIN),
]
