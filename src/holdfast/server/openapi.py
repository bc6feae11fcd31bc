"""The OpenAPI 3.1 document: FastAPI's, completed with examples, errors, the scope of each route and the bearer
token."""

from __future__ import annotations

from typing import Any, Final

from fastapi import FastAPI, routing
from fastapi.openapi.utils import get_openapi

from holdfast.features.tokens.model import Scope
from holdfast.server.parameters import PREFIX, Problem

JOB: Final = "0198c5b4-0000-7000-8000-000000000001"
WHY: Final = {"reason": "requested by the customer"}
FIXED: Final = {"reason": "fixed in release 7"}

EXAMPLES: Final[dict[str, Any]] = {
    "AddJobs": {"nodes": [{"name": "print", "kind": "print"}], "edges": [{"parent": "render", "child": "print"}]},
    "AddNode": {"name": "render", "kind": "render", "payload": {"issue": 7}},
    "AddExecutor": {"role": "executor"},
    "WithReason": WHY,
    "Checkpoint": {"job": JOB, "attempt": 1, "name": "row", "value": 100},
    "ClaimJobs": {"queues": ["default", "mail"], "want": 4, "kinds": ["send_mail"], "wait": 20},
    "Decide": {"verdict": "approve", "by": "ada", "comment": "fine"},
    "Disable": {"reason": "too many requests"},
    "Discard": {"reason": "the order was withdrawn"},
    "DiscardGroup": {"reason": "the orders were withdrawn", "rate": 50},
    "Enable": {"skip": False},
    "EnqueueMany": {
        "jobs": [
            {"kind": "send_mail", "payload": {"to": "ada@example.com"}, "key": "welcome-7"},
            {"kind": "send_mail", "payload": {"to": "bob@example.com"}, "key": "welcome-8"},
        ]
    },
    "ResumeSubscription": {"skip": False},
    "MoveTo": {"first": True, "reason": "a customer waits for it"},
    "Note": {"note": "the bank was unreachable on Monday; see ticket 7"},
    "OpenLease": {"name": "node-7", "ttl": 30, "kinds": ["send_mail"], "queues": ["mail"], "slots": 4},
    "PinLogin": {"tenant": "acme"},
    "Record": {"kind": "nightly_import"},
    "Redrive": {**FIXED, "max_attempts": 3},
    "RedriveAs": {"payload": {"to": "ada@example.com"}, **FIXED},
    "RedriveGroup": {**FIXED, "rate": 50},
    "RequireRegistration": {"on": True},
    "Release": {"jobs": [{"id": JOB, "attempt": 1}]},
    "RenewLease": {"ttl": 30},
    "ReplacePayload": {"payload": {"to": "ada@example.com"}, "reason": "the address was wrong"},
    "Reset": {"to": "now"},
    "Rotate": {"secret": "OPS_HOOK_2", "keep": 1},
    "SetKind": {"description": "Sends one mail."},
    "SetRule": {"kind": "send_mail", "forbidden": ["password"], "max_bytes": "64KB"},
    "Settle": {"job": JOB, "attempt": 1, "outcome": "succeeded", "result": {"sent": 3}},
    "SettleMany": {"settlements": [{"job": JOB, "attempt": 1, "outcome": "failed", "error": {"message": "busy"}}]},
    "SetExternalRef": {"external_ref": "crm-4711"},
    "SetFairQueues": {"on": True, "queue": "mail"},
    "What": {"queue": "mail"},
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
