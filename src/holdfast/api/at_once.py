"""``POST /api/v1/jobs`` without the machinery that finds routes and works out parameters, which costs as much again as
the rest of the service: it is the one request that comes a thousand times a second.

A middleware behind the gate and before all routes. It answers and refuses what the route would, which stays for the
document of the API.
"""

from __future__ import annotations

from fastapi.exceptions import RequestValidationError
from starlette.requests import Request
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from holdfast.access import Scope as Allowed
from holdfast.access import require_one
from holdfast.access.gate import path_below
from holdfast.access.problems import refusal_of
from holdfast.api.linking import PREFIX
from holdfast.api.problems import invalid_request
from holdfast.api.routes.jobs import enqueue_job
from holdfast.errors import HoldfastError

ROUTE = Route(f"{PREFIX}/jobs", enqueue_job, methods=["POST"])
"""By which the log names it."""


class AtOnce:
    def __init__(self, inner: ASGIApp) -> None:
        self._inner = inner

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "POST" or path_below(scope) != ROUTE.path:
            await self._inner(scope, receive, send)
            return
        scope["route"] = ROUTE
        request = Request(scope, receive)
        try:
            require_one(request, Allowed.ENQUEUE)
            answer = await enqueue_job(request)
        except HoldfastError as error:
            answer = refusal_of(error)
        except RequestValidationError as error:
            answer = invalid_request(error)
        await answer(scope, receive, send)
