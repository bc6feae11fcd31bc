"""What went wrong, as a page: the same codes and statuses as the API."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from holdfast.access.problems import status_of
from holdfast.access.requests import CLOSED, pattern_of
from holdfast.dashboard.rendering import render
from holdfast.errors import HoldfastError

log = logging.getLogger("holdfast.dashboard")


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, HoldfastError)
    return await render(
        request, "error.html", status=status_of(error), code=error.code, reason=error.message, fix=error.fix
    )


async def _http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return await render(
        request, "error.html", status=error.status_code, code="no_such_page", reason=str(error.detail), fix=None
    )


async def _gone(request: Request, error: Exception) -> Response:
    return Response(status_code=CLOSED)  # to nobody: they went in the midst of what they said


async def _broken(request: Request, error: Exception) -> Response:
    log.error("%s %s failed", request.method, pattern_of(request.scope), exc_info=error)
    reason = "something went wrong here; the log of the service says what"
    return await render(request, "error.html", status=500, code="internal_error", reason=reason, fix=None)


def failures() -> Mapping[Any, Any]:
    return {HoldfastError: _refused, HTTPException: _http, ClientDisconnect: _gone, Exception: _broken}
