"""The page of the registries and the deployment's policies."""

from __future__ import annotations

from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from holdfast.features.registry.model import Policies
from holdfast.server.pages import page_route
from holdfast.server.rendering import render, the_app

SHOWN: Final = 500


async def registry(request: Request) -> Response:
    app = the_app(request)
    policies = await app.policies.aget()
    return await render(
        request,
        "registry.html",
        policies=[(name, getattr(policies, name)) for name in Policies.__dataclass_fields__],
        kinds=(await app.kinds.alist())[:SHOWN],
        event_types=(await app.event_types.alist())[:SHOWN],
        unregistered=(await app.policies.aunregistered())[:SHOWN],
    )


routes = [page_route("/registry", registry)]
