"""Routes of the API: credentials first, then the body, parsed within limits."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from fastapi import APIRouter, Request
from fastapi.routing import APIRoute
from starlette.responses import Response

from holdfast.api.parsing import MOST_KEYS, MOST_KEYS_OPEN, at_leisure, parse


class _Parsed(Request):
    """A request whose body has been read and parsed already."""

    outcome: Callable[[], Any]

    async def json(self) -> Any:
        return self.outcome()


class JsonRoute(APIRoute):
    """A route that checks who may call it before it reads the body, which FastAPI does the other way round, and that
    parses the body with limits."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        answer = super().get_route_handler()
        if self.body_field is None:
            return answer
        checks = [each.call for each in self.dependant.dependencies if getattr(each.call, "first", False)]
        most_keys = MOST_KEYS if any(hasattr(check, "scope") for check in checks) else MOST_KEYS_OPEN

        async def checked(request: Request) -> Response:
            for check in checks:
                await check(request)  # type: ignore[misc]
            asked = _Parsed(request.scope, request.receive)
            body = await asked.body()
            try:
                value = await at_leisure(body, partial(parse, body, most_keys)) if body else None
                asked.outcome = lambda: value
            except ValueError as error:
                failed = error
                asked.outcome = lambda: _raise(failed)
            return await answer(asked)

        return checked


def _raise(error: Exception) -> Any:
    raise error


Router = partial(APIRouter, route_class=JsonRoute)
