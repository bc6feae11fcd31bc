"""Payload rules: what payloads and results may contain."""

from __future__ import annotations

from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from holdfast.features.payloads.model import EACH_KIND
from holdfast.features.tokens.model import Scope
from holdfast.server.pages import ask_first, does, fields, go, said, shows
from holdfast.server.rendering import render, the_app

SHOWN: Final = 200


async def index(request: Request) -> Response:
    found = await the_app(request).payload_rules.alist()
    return await render(request, "payload_rules.html", rules=found[:SHOWN])


async def change(request: Request) -> Response:
    """Save an operator's rule for one kind, or for all kinds."""
    given = await fields(request)
    await the_app(request).payload_rules.aset(
        said(given, "kind", 255) or EACH_KIND,
        signal_only=given.get("signal_only") == "yes",
        restricted=given.get("restricted") == "yes",
        max_bytes=said(given, "max_bytes", 20),
    )
    return go(request, "/payload-rules", "Rule saved. It applies to jobs that are enqueued from now on.")


async def remove(request: Request) -> Response:
    given = await fields(request)
    kind = said(given, "kind", 255) or EACH_KIND
    if (asks := await ask_first(request, "Remove this rule?", back="/payload-rules")) is not None:
        return asks
    await the_app(request).payload_rules.aremove(kind, declared_by=said(given, "declared_by", 255) or "")
    return go(request, "/payload-rules", "Rule removed.")


routes = [
    shows("/payload-rules", index),
    does("/payload-rules", change, Scope.ADMIN),
    does("/payload-rules/remove", remove, Scope.ADMIN),
]
