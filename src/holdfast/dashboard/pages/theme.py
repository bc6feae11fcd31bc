"""Light, dark, or as the machine has it: a choice that is kept in a cookie, so that pages come in the right colours."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from holdfast.access import Scope, require
from holdfast.dashboard.acting import below, field, go
from holdfast.dashboard.rendering import THEME, THEMES

A_YEAR = 365 * 86_400


async def choose(request: Request) -> Response:
    require(request, Scope.READ)
    chosen = await field(request, "theme")
    answer = go(request, below(await field(request, "back", "/")))
    if chosen in THEMES:
        path = request.scope.get("root_path", "") or "/"
        answer.set_cookie(THEME, chosen, max_age=A_YEAR, httponly=True, samesite="lax", path=path)
    return answer


routes = [Route("/theme", choose, methods=["POST"])]
