"""Exception handlers: every error as a problem document (RFC 9457), with the same stable code as in Python and SQL."""

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
    async def other(request: Request, error: HTTPException) -> Response:
        status, message, fix = error.status_code, str(error.detail), None
        code = "no_such_route" if status == 404 else "method_not_allowed" if status == 405 else "invalid_request"
        if status == 404:
            message = f"there is no route {request.url.path[:200]}"
            fix = f"List the routes: {request.scope.get('root_path', '')}/api/v1/openapi.json"
        elif status == 405:
            message = f"{request.method} is not allowed for {request.url.path[:200]}"
        response = problem(status, code, message, fix=fix)
        response.headers.update(error.headers or {})
        return response

    @service.exception_handler(Exception)
    async def broken(request: Request, error: Exception) -> Response:
        log.error("%s %s failed", request.method, pattern_of(request.scope), exc_info=error)
        response = problem(500, "internal_error", "Internal error. The log of the service has the details.")
        # This handler runs outside of the middleware that adds these headers.
        response.headers.update({"cache-control": "no-store", "x-content-type-options": "nosniff"})
        return response


def invalid_request(error: RequestValidationError) -> Response:
    first: dict[str, Any] = dict(error.errors()[0])
    where = ".".join(str(part) for part in first["loc"])
    return problem(422, "invalid_request", f"{where}: {first['msg']}")


def add_fallback(service: FastAPI) -> None:
    """Return a problem document, not a page of the dashboard, for unknown paths and methods below ``/api``."""

    async def no_route(request: Request) -> Response:
        others = [route for route in service.routes if route is not fallback and not isinstance(route, Mount)]
        scopes = {method: {**request.scope, "method": method} for method in METHODS}
        allowed = [
            method for method in METHODS if any(route.matches(scopes[method])[0] is Match.FULL for route in others)
        ]
        if not allowed:
            raise HTTPException(404)
        raise HTTPException(405, headers={"Allow": ", ".join([*allowed, *(["HEAD"] if "GET" in allowed else [])])})

    fallback = Route("/api/{rest:path}", no_route, methods=[*METHODS], include_in_schema=False)
    service.router.routes.append(fallback)


METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE")
