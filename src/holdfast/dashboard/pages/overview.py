"""How it stands: what waits and for how long, what runs, what failed, and who works."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from holdfast.access import Scope, require
from holdfast.dashboard.rendering import render, the_app


async def overview(request: Request) -> Response:
    require(request, Scope.READ)
    health = await the_app(request).ahealth()
    return render(request, "overview.html", health=health)


routes = [Route("/", overview)]
