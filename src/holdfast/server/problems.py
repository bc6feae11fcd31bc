"""Errors over HTTP: the status of each, and the problem document (RFC 9457) with its stable code."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from fastapi.exceptions import RequestValidationError
from starlette.responses import JSONResponse

from holdfast.errors import (
    Conflict,
    EventsGone,
    HoldfastError,
    IllegalTransition,
    InvalidInput,
    NotFound,
    Refused,
    StaleLease,
    StoreError,
    WaitTimeout,
)

# The status by code comes before the status by class; the first matching class counts.
BY_CODE = {
    "unauthenticated": 401,
    "missing_scope": 403,
    "cross_site": 403,
    "not_for_a_tenant": 403,
    "tenant_required": 422,
    "key_required": 422,
    "executor_required": 422,
    "agent_required": 422,
    # Not permitted.
    "not_allowed": 403,
    "restricted": 403,
    "artifact_not_yours": 403,
    "not_an_approver": 403,
    "requester_may_not_decide": 403,
    "generator_only": 403,
    "executor_refused": 403,
    "tenant_unregistered": 403,
    "kind_unregistered": 422,
    "agent_unregistered": 422,
    "event_type_unregistered": 422,
    "event_data_invalid": 422,
    # Gone or not found.
    "token_used": 410,
    "token_expired": 410,
    "approval_expired": 410,
    "events_gone": 410,
    "target_not_found": 404,
    "no_such_step": 404,
    # Too large, or not acceptable.
    "body_too_complex": 413,
    "not_a_form": 415,
    "payload_too_large": 413,
    "payload_over_limit": 413,
    "agent_payload_limit": 413,
    "payload_forbidden": 422,
    "person_required": 422,
    "agent_kind_mismatch": 422,
    "step_ambiguous": 422,
    # Not at the moment.
    "tenant_full": 429,
    "paused": 503,
    # Nothing that the caller can change.
    "missing_extra": 501,
    "no_artifact_store": 501,
    "no_keys": 501,
    "internal_error": 500,
}
_UNTIL = re.compile(r"until (\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ)")
BY_CLASS: tuple[tuple[type[HoldfastError], int], ...] = (
    (NotFound, 404),
    (Conflict, 409),
    (StaleLease, 409),
    (IllegalTransition, 409),
    (Refused, 409),
    (InvalidInput, 422),
    (WaitTimeout, 408),
    (StoreError, 503),
)


def status_of(error: HoldfastError) -> int:
    known = BY_CODE.get(error.code)
    return known or next((status for kind, status in BY_CLASS if isinstance(error, kind)), 500)


def refusal_of(error: HoldfastError) -> JSONResponse:
    more = {"cursor": error.cursor, "through": error.through} if isinstance(error, EventsGone) else {}
    name = type(error).__name__
    response = problem(status_of(error), error.code, error.message, fix=error.fix, error=name, more=more)
    until = _UNTIL.search(error.message) if error.code == "paused" else None
    if until is not None:
        left = datetime.fromisoformat(until[1]) - datetime.now(UTC)
        response.headers["retry-after"] = str(max(1, math.ceil(left.total_seconds())))
    return response


def invalid_request(error: RequestValidationError) -> JSONResponse:
    first: dict[str, Any] = dict(error.errors()[0])
    where = ".".join(str(part) for part in first["loc"])
    return problem(422, "invalid_request", f"{where}: {first['msg']}")


def problem(
    status: int,
    code: str,
    reason: str,
    *,
    fix: str | None = None,
    error: str | None = None,
    more: Mapping[str, object] | None = None,
) -> JSONResponse:
    """A problem document. ``error`` is the class of the error in Python, so that a client can raise the same; ``more``
    are the further attributes of that class."""
    body: dict[str, object] = {
        "type": f"urn:holdfast:error:{code}",
        "title": code.replace("_", " "),
        "status": status,
        "code": code,
        "detail": reason,
        "refused": True,
        "reason": reason,
    }
    if fix is not None:
        body["fix"] = fix
    if error is not None:
        body["error"] = error
    body |= more or {}
    return JSONResponse(body, status_code=status, media_type="application/problem+json")
