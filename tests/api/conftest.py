"""The service on every store, asked in this process as a program on the same machine would ask it."""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpx2
import pytest
import pytest_asyncio

from holdfast import App
from holdfast.access import Identity, scopes_of
from holdfast.access.local import at_this_machine
from holdfast.service import make_service
from tests.app.conftest import app, new_app, url

__all__ = ["app", "new_app", "url"]

HERE = "http://127.0.0.1:8000"


@pytest_asyncio.fixture
async def http(app: App) -> AsyncIterator[httpx2.AsyncClient]:
    """As the person at this machine, who may do everything."""
    async with client_of(app) as client:
        yield client


def client_of(app: App, *, role: str | None = None, tenant: str = "default") -> httpx2.AsyncClient:
    """With ``role``: as somebody of that role whom the program that mounts us has let in."""
    if role is None:
        authenticate = at_this_machine(app.client)
    else:
        known = Identity(f"a {role}", tenant, scopes_of([role]))
        authenticate = lambda _: known  # noqa: E731
    app.client.make_ready()
    transport = httpx2.ASGITransport(make_service(app, authenticate=authenticate), raise_app_exceptions=False)
    return httpx2.AsyncClient(transport=transport, base_url=HERE)


@pytest.fixture
def anonymous(app: App) -> httpx2.AsyncClient:
    app.client.make_ready()
    service = make_service(app, authenticate=lambda _: None)
    return httpx2.AsyncClient(transport=httpx2.ASGITransport(service), base_url=HERE)
