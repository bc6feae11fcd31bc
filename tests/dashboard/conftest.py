"""The dashboard on every store, called in this process as by a browser."""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpx2
import pytest_asyncio

from holdfast import App
from tests.api.conftest import HERE, anonymous, app, client_of, new_app

__all__ = ["anonymous", "app", "new_app"]


@pytest_asyncio.fixture
async def http(app: App) -> AsyncIterator[httpx2.AsyncClient]:
    """A client with the rights of the local user, whose forms carry an Origin header."""
    async with client_of(app) as client:
        client.headers["origin"] = HERE
        yield client
