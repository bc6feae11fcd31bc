"""The versions page: versions of the application, held jobs with both sequences of steps, patches."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from holdfast.features.tokens.model import Scope
from holdfast.server.pages import action_route, confirm, fields, page_route, redirect, text_field
from holdfast.server.rendering import render, the_app


async def index(request: Request) -> Response:
    app = the_app(request)
    return await render(
        request,
        "versions.html",
        versions=await app.versions.alist(),
        held=await app.versions.aheld(),
        patches=await app.versions.apatches(),
    )


async def move(request: Request) -> Response:
    form = await fields(request)
    version, to = (text_field(form, name, 100) or "" for name in ("version", "to"))
    question = f"Move every unfinished job that is pinned to version {version} to version {to}?"
    if (confirmation := await confirm(request, question, back="/versions")) is not None:
        return confirmation
    moved = await the_app(request).versions.amove(version, to=to, reason=text_field(form, "reason", 255))
    return redirect(request, "/versions", f"Moved {moved.moved:,} jobs from version {version} to {to}.")


routes = [
    page_route("/versions", index),
    action_route("/versions/move", move, Scope.OPERATE),
]
