"""Errors as answers over HTTP: the status of each, and the problem document (RFC 9457) with our stable code (DP-3)."""

from __future__ import annotations

from starlette.responses import JSONResponse

from holdfast.domain.errors import (
    Conflict,
    HoldfastError,
    IllegalTransition,
    InvalidInput,
    NotFound,
    Refused,
    StaleLease,
    StoreError,
    WaitTimeout,
)

# A code of its own comes before its class, and the first class that fits counts.
BY_CODE = {
    "unauthenticated": 401,
    "missing_scope": 403,
    "cross_site": 403,
    "missing_extra": 501,
}
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


def problem(status: int, code: str, reason: str, *, fix: str | None = None) -> JSONResponse:
    """DP-3's ``refused`` and ``reason`` are in it."""
    body = {
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
    return JSONResponse(body, status_code=status, media_type="application/problem+json")
