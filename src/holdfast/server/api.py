"""The HTTP API under ``/api/v1``: the operations of the app as routes, without rules of its own, and its OpenAPI 3.1
document: that of FastAPI, completed with examples, errors, the scope of each route and the bearer token."""

from __future__ import annotations

import logging
from typing import Any, Final, get_type_hints

from fastapi import APIRouter, FastAPI, routing
from fastapi.exceptions import RequestValidationError
from fastapi.openapi.utils import get_openapi
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match, Mount, Route

from holdfast.app import App
from holdfast.app.internals import session_of
from holdfast.errors import HoldfastError
from holdfast.features.approvals import routes as approvals
from holdfast.features.archives import routes as archives
from holdfast.features.dead_letters import routes as dead_letters
from holdfast.features.events import routes as events
from holdfast.features.health import routes as health
from holdfast.features.jobs import routes as jobs
from holdfast.features.retention import routes as retention
from holdfast.features.schedules import routes as schedules
from holdfast.features.tenants import routes as tenants
from holdfast.features.tokens.model import Scope
from holdfast.features.tokens.operations import Tokens
from holdfast.features.workers import routes as workers
from holdfast.features.workflows import routes as workflows
from holdfast.server import leases, metrics
from holdfast.server.auth import refuse_excess
from holdfast.server.derived import routes
from holdfast.server.middleware import pattern_of
from holdfast.server.parameters import PREFIX, Problem
from holdfast.server.problems import invalid_request, problem, refusal_of

JOB: Final = "0198c5b4-0000-7000-8000-000000000001"

EXAMPLES: Final[dict[str, Any]] = {
    "AddJobs": {"nodes": [{"name": "print", "kind": "print"}], "edges": [{"parent": "render", "child": "print"}]},
    "AddNode": {"name": "render", "kind": "render", "payload": {"issue": 7}},
    "Checkpoint": {"job": JOB, "attempt": 1, "name": "row", "value": 100},
    "ClaimJobs": {"queues": ["default", "mail"], "want": 4, "kinds": ["send_mail"], "wait": 20},
    "Decide": {"verdict": "approve", "by": "ada", "comment": "fine"},
    "EnqueueMany": {
        "jobs": [
            {"kind": "send_mail", "payload": {"to": "ada@example.com"}, "key": "welcome-7"},
            {"kind": "send_mail", "payload": {"to": "bob@example.com"}, "key": "welcome-8"},
        ]
    },
    "OpenLease": {"name": "node-7", "ttl": 30, "kinds": ["send_mail"], "queues": ["mail"], "slots": 4},
    "Release": {"jobs": [{"id": JOB, "attempt": 1}]},
    "RenewLease": {"ttl": 30},
    "Settle": {"job": JOB, "attempt": 1, "outcome": "succeeded", "result": {"sent": 3}},
    "SettleMany": {"settlements": [{"job": JOB, "attempt": 1, "outcome": "failed", "error": {"message": "busy"}}]},
}


PROBLEM = {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}}
ERRORS = {
    "401": "Authentication required.",
    "403": "The caller lacks the scope of this route.",
    "404": "Not found in this tenant.",
    "409": "Refused because of the current state or a rule.",
    "413": "Request body too large.",
    "422": "Invalid request.",
    "429": "Too many requests or jobs; `Retry-After` is set where the delay is known.",
    "503": "The database is unreachable, or processing is paused.",
}
ABOUT = (
    "Durable jobs over HTTP. Requests and responses are JSON; times are RFC 3339 in UTC; a list returns `items` and"
    " `next`, which is the `after` of the next page. An error is a problem document (RFC 9457) with a stable `code`."
)


def add_document(service: FastAPI) -> None:
    def document() -> dict[str, Any]:
        if service.openapi_schema is None:
            service.openapi_schema = _document(service)
        return service.openapi_schema

    service.openapi = document  # type: ignore[method-assign]


def scope_of(route: Any) -> Scope | None:
    """The scope that the route requires; None if it needs no authentication."""
    declared = [getattr(dependency.call, "scope", None) for dependency in route.dependant.dependencies]
    scopes = [scope for scope in declared if isinstance(scope, Scope)]
    assert len(scopes) <= 1, f"{route.name} requires more than one scope"
    return scopes[0] if scopes else None


def every_route(service: FastAPI) -> list[Any]:
    """All routes with their full paths. Newer releases of FastAPI do not copy the routes of included routers."""
    unfold = getattr(routing, "iter_route_contexts", iter)
    return [route for route in unfold(service.routes) if getattr(route, "dependant", None) is not None]


def _document(service: FastAPI) -> dict[str, Any]:
    document = get_openapi(
        title=service.title,
        version=service.version,
        openapi_version="3.1.0",
        description=ABOUT,
        routes=service.routes,
    )
    components = document.setdefault("components", {})
    schemas = components.setdefault("schemas", {})
    schemas["Problem"] = Problem.model_json_schema()
    for name, example in EXAMPLES.items():
        schemas[name]["examples"] = [example]
    for unused in ("HTTPValidationError", "ValidationError"):
        schemas.pop(unused, None)
    components["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer", "bearerFormat": "hf_…"}}
    for route in every_route(service):
        if not route.include_in_schema:
            continue
        for method in route.methods:
            _complete(document["paths"][route.path_format][method.lower()], route, method)
    return document


def _complete(operation: dict[str, Any], route: Any, method: str) -> None:
    scope = scope_of(route)
    statuses = {"422", "503"} if route.path_format.startswith(PREFIX) else set[str]()
    if scope is not None:
        statuses |= {"401", "403"}
        operation["security"] = [{"token": []}]
        operation["x-holdfast-scope"] = scope.value
    if "{" in route.path_format:
        statuses.add("404")
    if method != "GET":
        statuses |= {"409", "413", "429"}
    responses = operation["responses"]
    responses.pop("422", None)
    for status in sorted(statuses):
        responses[status] = {"description": ERRORS[status], "content": PROBLEM}
    if statuses:
        responses["4XX"] = {"description": "Another error.", "content": PROBLEM}


log = logging.getLogger("holdfast.api")

METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE")
DERIVED = (
    *("agents", "executors", "kinds", "event_types", "policies", "retention", "health", "audit", "webhooks"),
    *("connectors", "workers", "versions"),
)
"""Namespaces of ``App`` whose routes are derived; a feature's ``routes.py`` has those that are written by hand."""


def derived(noun: str) -> APIRouter:
    return routes(noun, get_type_hints(App)[noun])


ROUTES = (
    *(derived(noun) for noun in DERIVED),
    *(
        leases.tick_router,
        jobs.router,
        jobs.declared_router,
        dead_letters.operation_router,
        dead_letters.declared_operation_router,
        dead_letters.router,
        dead_letters.declared_router,
        approvals.by_token,  # before /approvals/{approval_id}/…
        approvals.router,
        approvals.declared_router,
        events.router,
        schedules.router,
        schedules.template_router,
        workflows.router,
        derived("queues"),
    ),
    *(
        derived("limits"),
        archives.router,
        archives.derived_router,
        derived("payload_rules"),
        derived("pauses"),
        events.subscription_router,
        events.consumer_router,
        derived("reservations"),
        tenants.router,
    ),
    *(
        retention.router,
        leases.router,
        routes("tokens", Tokens, issue=refuse_excess),
        workers.router,
    ),
)


def add_api(service: FastAPI, app: App) -> None:
    service.state.readiness = health.Readiness(session_of(app).store)
    add_problems(service)
    add_document(service)
    service.include_router(health.probes)
    service.include_router(metrics.probes)
    for router in ROUTES:
        service.include_router(router, prefix=PREFIX)
    service.include_router(leases.tick_router, prefix="/api", include_in_schema=False)  # also at /api/jobs/tick
    add_fallback(service)  # last: it matches every remaining path below /api


def add_problems(service: FastAPI) -> None:
    """Return every error as a problem document (RFC 9457), with the same stable code as in Python and SQL."""

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
