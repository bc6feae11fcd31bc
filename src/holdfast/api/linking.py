"""Addresses of our own, below whatever we are mounted under."""

from __future__ import annotations

from starlette.requests import Request

PREFIX = "/api/v1"


def here(request: Request, path: str) -> str:
    return f"{request.scope.get('root_path', '')}{PREFIX}{path}"
