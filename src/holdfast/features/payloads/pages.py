"""The page of payload rules."""

from __future__ import annotations

from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from holdfast.features.payloads.model import EACH_KIND, RuleOptions
from holdfast.features.tokens.model import Scope
from holdfast.server.pages import action_route, confirm, fields, option_fields, page_route, redirect, text_field
from holdfast.server.rendering import render, the_app

SHOWN: Final = 200


async def index(request: Request) -> Response:
    rules = await the_app(request).payload_rules.alist()
    return await render(request, "payload_rules.html", rules=rules[:SHOWN])


async def change(request: Request) -> Response:
    """Save an operator's rule for one kind, or for all kinds."""
    form = await fields(request)
    kind = text_field(form, "kind", 255) or EACH_KIND
    await the_app(request).payload_rules.aset(kind, **option_fields(form, RuleOptions))
    return redirect(request, "/payload-rules", "Rule saved. It applies to jobs that are enqueued from now on.")


async def remove(request: Request) -> Response:
    form = await fields(request)
    kind = text_field(form, "kind", 255) or EACH_KIND
    if (confirmation := await confirm(request, "Remove this rule?", back="/payload-rules")) is not None:
        return confirmation
    await the_app(request).payload_rules.aremove(kind, declared_by=text_field(form, "declared_by", 255) or "")
    return redirect(request, "/payload-rules", "Rule removed.")


routes = [
    page_route("/payload-rules", index),
    action_route("/payload-rules", change, Scope.ADMIN),
    action_route("/payload-rules/remove", remove, Scope.ADMIN),
]
