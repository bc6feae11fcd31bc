"""A page or an action with the one scope that it asks for. No route is made without one, and the matrix of roles in the
tests tries each."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from holdfast.access import Identity, Scope, identity_of, require
from holdfast.dashboard.rendering import the_app
from holdfast.errors import Refused

Endpoint = Callable[[Request], Awaitable[Response]]


def shows(path: str, endpoint: Endpoint, scope: Scope = Scope.READ) -> Route:
    """What is looked at, and changes nothing."""
    return Route(path, guarded(endpoint, scope), methods=["GET"])


def does(path: str, endpoint: Endpoint, scope: Scope) -> Route:
    """What is done, by a form that is posted."""
    return Route(path, guarded(endpoint, scope), methods=["POST"])


def guarded(endpoint: Endpoint, scope: Scope) -> Endpoint:
    """Those who look after every tenant say in ``?tenant=`` whose thing they mean, where its name alone does not; the
    parameter of anybody else is not looked at (rule 16)."""

    async def answer(request: Request) -> Response:
        identity = require(request, scope)
        whose = request.query_params.get("tenant", "")
        if not identity.everywhere or not whose:
            return await endpoint(request)
        with the_app(request).client.serving(whose, identity.actor):
            return await endpoint(request)

    return answer


def whole(request: Request) -> Identity:
    """Who asks, if they look after the whole: what is every tenant's is not for one of them."""
    identity = identity_of(request)
    if not identity.runs_all:
        raise Refused(
            f"{identity.actor} acts for tenant {identity.tenant}, and this is about all of them",
            code="missing_scope",
            fix="It takes a token of every tenant (*).",
        )
    return identity
