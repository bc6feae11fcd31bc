"""Every refusal as a problem document (RFC 9457) with the same stable code that Python and SQL give (DP-3)."""

from __future__ import annotations

import logging
from typing import Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match, Mount, Route

from holdfast.errors import HoldfastError
from holdfast.server.problems import problem, refusal_of
from holdfast.server.request_log import pattern_of

log = logging.getLogger("holdfast.api")


def add_problems(service: FastAPI) -> None:
    @service.exception_handler(HoldfastError)
    async def refused(_: Request, error: HoldfastError) -> Response:
        return refusal_of(error)

    @service.exception_handler(RequestValidationError)
    async def invalid(_: Request, error: RequestValidationError) -> Response:
        return invalid_request(error)

    @service.exception_handler(HTTPException)
    async def other(_: Request, error: HTTPException) -> Response:
        status = error.status_code
        code = "no_such_route" if status == 404 else "method_not_allowed" if status == 405 else "invalid_request"
        answer = problem(status, code, str(error.detail))
        answer.headers.update(error.headers or {})
        return answer

    @service.exception_handler(Exception)
    async def broken(request: Request, error: Exception) -> Response:
        log.error("%s %s failed", request.method, pattern_of(request.scope), exc_info=error)
        answer = problem(500, "internal_error", "something went wrong here; the log of the service says what")
        # It is made outside of all else that would add them.
        answer.headers.update({"cache-control": "no-store", "x-content-type-options": "nosniff"})
        return answer


def invalid_request(error: RequestValidationError) -> Response:
    first: dict[str, Any] = dict(error.errors()[0])
    where = ".".join(str(part) for part in first["loc"])
    return problem(422, "invalid_request", f"{where}: {first['msg']}")


def add_the_rest(service: FastAPI) -> None:
    """What is below /api and no route of ours is a problem, too, and not a page of the dashboard."""

    async def nothing(request: Request) -> Response:
        others = [route for route in service.routes if route is not here and not isinstance(route, Mount)]
        asked = {method: {**request.scope, "method": method} for method in METHODS}
        known = [word for word in METHODS if any(each.matches(asked[word])[0] is Match.FULL for each in others)]
        if not known:
            raise HTTPException(404)
        raise HTTPException(405, headers={"Allow": ", ".join([*known, *(["HEAD"] if "GET" in known else [])])})

    here = Route("/api/{rest:path}", nothing, methods=[*METHODS], include_in_schema=False)
    service.router.routes.append(here)


METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE")
