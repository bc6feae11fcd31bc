"""The HTTP service on every store, called in this process as from the same machine."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest
import pytest_asyncio
from fastapi import FastAPI

from holdfast import App
from holdfast.app.internals import session_of
from holdfast.features.tokens.model import scopes_of
from holdfast.server.app import close_background, make_service
from holdfast.server.auth import Identity, at_this_machine
from tests.app.conftest import app, new_app

__all__ = ["app", "new_app"]

HERE = "http://127.0.0.1:8000"


@pytest_asyncio.fixture
async def http(app: App) -> AsyncIterator[httpx2.AsyncClient]:
    """A client with the rights of the local user, who may do everything."""
    async with client_of(app) as client:
        yield client


def client_of(app: App, *, role: str | None = None, tenant: str = "default") -> httpx2.AsyncClient:
    """With ``role``: as a user of that role, authenticated by the program that mounts the service."""
    if role is None:
        authenticate = at_this_machine(app)
    else:
        known = Identity(f"a {role}", tenant, scopes_of([role]))
        authenticate = lambda _: known  # noqa: E731
    session_of(app).make_ready()
    return ServiceClient(make_service(app, authenticate=authenticate))


class ServiceClient(httpx2.AsyncClient):
    """On exit it waits for the background tasks of the service, which must end before the loop of the test."""

    def __init__(self, service: FastAPI) -> None:
        super().__init__(transport=httpx2.ASGITransport(service, raise_app_exceptions=False), base_url=HERE)
        self.service = service

    async def __aexit__(self, *error: Any) -> None:
        await self.service.state.live.aclose()
        await close_background(self.service)
        await super().__aexit__(*error)


@pytest.fixture
def anonymous(app: App) -> httpx2.AsyncClient:
    session_of(app).make_ready()
    service = make_service(app, authenticate=lambda _: None)
    return httpx2.AsyncClient(transport=httpx2.ASGITransport(service), base_url=HERE)
