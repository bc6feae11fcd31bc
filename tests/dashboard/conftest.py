"""The dashboard on every store, asked in this process as a browser would ask it."""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpx2
import pytest_asyncio

from holdfast import App
from tests.api.conftest import HERE, anonymous, app, client_of, new_app, url

__all__ = ["anonymous", "app", "new_app", "url"]


@pytest_asyncio.fixture
async def http(app: App) -> AsyncIterator[httpx2.AsyncClient]:
    """As the person at this machine, who may do everything; a form of ours says where it comes from."""
    async with client_of(app) as client:
        client.headers["origin"] = HERE
        yield client
