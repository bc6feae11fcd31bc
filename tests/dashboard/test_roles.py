"""Who may do what on the pages: every route of the dashboard is tried by every scope and every role (rule 19)."""

from __future__ import annotations

import re

import httpx2
import pytest
from starlette.requests import Request
from starlette.routing import Route

from holdfast import App
from holdfast.features.tokens.model import ROLES, Role, Scope
from holdfast.server.app import make_service
from holdfast.server.auth import Identity
from holdfast.server.dashboard import make_dashboard
from tests.api.conftest import HERE

pytestmark = [pytest.mark.req("JF-16"), pytest.mark.parametrize("url", ["sqlite"], indirect=True)]

# What carries its own credential, or is how one comes by one.
OPEN = {"/decide/{token}", "/login", "/logout"}
SAFE = {"GET", "HEAD"}


class Somebody:
    """Who looks after the whole, and may do only what is said here."""

    scopes: frozenset[Scope] = frozenset()

    def __call__(self, _: Request) -> Identity:
        return Identity("somebody", "default", self.scopes, whole=True)


def path_of(route: Route) -> str:
    return re.sub(r"\{[^}]+\}", "01a1e1b7-1e12-738e-9fd2-be7089c8714f", route.path)


@pytest.mark.slow
async def test_every_action_asks_for_one_scope_and_every_role_is_held_to_it(app: App) -> None:
    app._session.make_ready()
    routes = [route for route in make_dashboard(app).routes if isinstance(route, Route) and route.path not in OPEN]
    unsafe = [route for route in routes if set(route.methods or ()) - SAFE]
    assert len(unsafe) > 20
    somebody = Somebody()
    service = make_service(app, authenticate=somebody)
    transport = httpx2.ASGITransport(service, raise_app_exceptions=False)
    async with httpx2.AsyncClient(transport=transport, base_url=HERE) as client:

        async def may(route: Route, scopes: frozenset[Scope]) -> bool:
            somebody.scopes = scopes
            return (await client.post(path_of(route))).status_code != 403

        for route in unsafe:
            let_in = {scope for scope in Scope if await may(route, frozenset({scope}))}
            assert len(let_in) == 1, (route.path, let_in)
            for role in Role:
                assert await may(route, ROLES[role]) == (let_in <= ROLES[role]), (role, route.path)
        somebody.scopes = frozenset()
        for route in routes:
            if "GET" in (route.methods or ()):
                assert (await client.get(path_of(route))).status_code == 403, route.path
