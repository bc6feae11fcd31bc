"""Who may do what on the pages: every route of the dashboard is tried by every scope and every role (rule 19)."""

from __future__ import annotations

import re

import httpx2
import pytest
from starlette.routing import Route

from holdfast import App
from holdfast.access import ROLES, Identity, Role, Scope
from holdfast.dashboard import make_dashboard
from holdfast.service import make_service
from tests.api.conftest import HERE

pytestmark = [pytest.mark.req("JF-16"), pytest.mark.parametrize("url", ["sqlite"], indirect=True)]

# What carries its own credential, or is how one comes by one.
OPEN = {"/decide/{token}", "/login", "/logout"}
SAFE = {"GET", "HEAD"}


def asked(app: App, scopes: frozenset[Scope]) -> httpx2.AsyncClient:
    """As somebody who looks after the whole, and may do only this."""
    known = Identity("somebody", "default", scopes, whole=True)
    service = make_service(app, authenticate=lambda _: known)
    return httpx2.AsyncClient(transport=httpx2.ASGITransport(service, raise_app_exceptions=False), base_url=HERE)


def path_of(route: Route) -> str:
    return re.sub(r"\{[^}]+\}", "01a1e1b7-1e12-738e-9fd2-be7089c8714f", route.path)


async def test_every_action_asks_for_one_scope_and_every_role_is_held_to_it(app: App) -> None:
    app.client.make_ready()
    routes = [route for route in make_dashboard(app).routes if isinstance(route, Route) and route.path not in OPEN]
    unsafe = [route for route in routes if set(route.methods or ()) - SAFE]
    assert len(unsafe) > 20
    let_in: dict[str, set[Scope]] = {route.path: set() for route in unsafe}
    for scope in Scope:
        async with asked(app, frozenset({scope})) as client:
            for route in unsafe:
                if (await client.post(path_of(route))).status_code != 403:
                    let_in[route.path].add(scope)
    assert {path: scopes for path, scopes in let_in.items() if len(scopes) != 1} == {}
    for role in Role:
        async with asked(app, ROLES[role]) as client:
            for route in unsafe:
                allowed = (await client.post(path_of(route))).status_code != 403
                assert allowed == (let_in[route.path] <= ROLES[role]), (role, route.path)
    async with asked(app, frozenset()) as nobody:
        for route in routes:
            if "GET" in (route.methods or ()):
                assert (await nobody.get(path_of(route))).status_code == 403, route.path
