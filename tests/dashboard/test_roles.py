"""Every action of the dashboard is tried with every scope and every role."""

from __future__ import annotations

import re

import httpx2
import pytest
from starlette.requests import Request
from starlette.routing import Route

from holdfast import App
from holdfast.app.internals import session_of
from holdfast.features.tokens.model import ROLES, Role, Scope
from holdfast.server.app import make_dashboard, make_service
from holdfast.server.auth import Identity
from tests.api.conftest import HERE

pytestmark = [pytest.mark.req("JF-16"), pytest.mark.parametrize("url", ["sqlite"], indirect=True)]

# Routes with their own credential, or that give one.
OPEN = {"/decide/{token}", "/login", "/logout"}
SAFE = {"GET", "HEAD"}


class User:
    """A user of every tenant with exactly these scopes."""

    scopes: frozenset[Scope] = frozenset()

    def __call__(self, _: Request) -> Identity:
        return Identity("user", "default", self.scopes, whole=True)


def path_of(route: Route) -> str:
    return re.sub(r"\{[^}]+\}", "01a1e1b7-1e12-738e-9fd2-be7089c8714f", route.path)


@pytest.mark.slow
async def test_every_action_needs_one_scope_that_roles_respect(app: App) -> None:
    session_of(app).make_ready()
    routes = [route for route in make_dashboard(app).routes if isinstance(route, Route) and route.path not in OPEN]
    unsafe = [route for route in routes if set(route.methods or ()) - SAFE]
    assert len(unsafe) > 20
    user = User()
    service = make_service(app, authenticate=user)
    transport = httpx2.ASGITransport(service, raise_app_exceptions=False)
    async with httpx2.AsyncClient(transport=transport, base_url=HERE) as client:

        async def may(route: Route, scopes: frozenset[Scope]) -> bool:
            user.scopes = scopes
            return (await client.post(path_of(route))).status_code != 403

        for route in unsafe:
            allowed = {scope for scope in Scope if await may(route, frozenset({scope}))}
            assert len(allowed) == 1, (route.path, allowed)
            for role in Role:
                assert await may(route, ROLES[role]) == (allowed <= ROLES[role]), (role, route.path)
        user.scopes = frozenset()
        for route in routes:
            if "GET" in (route.methods or ()):
                assert (await client.get(path_of(route))).status_code == 403, route.path
