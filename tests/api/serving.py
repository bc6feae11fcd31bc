"""The service behind a real socket, for tests that need the network."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator

import httpx2
import uvicorn
from starlette.types import ASGIApp

from holdfast import App
from holdfast.server.app import make_service
from holdfast.server.auth import Authenticate, at_this_machine


async def auntil(condition: Callable[[], object], what: str, limit: float = 30.0) -> None:
    """``until`` on the running loop."""
    async with asyncio.timeout(limit):
        while not condition():  # noqa: ASYNC110  # the condition has no event
            await asyncio.sleep(0.01)
    assert condition(), what


class _Server(uvicorn.Server):
    """Leaves signals to the test runner."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@contextlib.asynccontextmanager
async def serving(app: App, authenticate: Authenticate | None = None) -> AsyncIterator[str]:
    """Serve the app; yield the address. The server has stopped when the block ends."""
    async with serving_asgi(make_service(app, authenticate=authenticate or at_this_machine(app))) as address:
        yield address


@contextlib.asynccontextmanager
async def serving_asgi(service: ASGIApp) -> AsyncIterator[str]:
    config = uvicorn.Config(service, host="127.0.0.1", port=0, log_level="warning", timeout_graceful_shutdown=5)
    server = _Server(config)
    running = asyncio.create_task(server.serve())
    while not server.started:
        if running.done():
            await running
        await asyncio.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        await running


@contextlib.asynccontextmanager
async def events_of(
    address: str, path: str = "/api/v1/events/stream", headers: dict[str, str] | None = None
) -> AsyncIterator[AsyncIterator[dict[str, str]]]:
    """The fields of each server-sent event; comments are left out."""

    async def parsed(lines: AsyncIterator[str]) -> AsyncIterator[dict[str, str]]:
        event: dict[str, str] = {}
        async for line in lines:
            if not line:
                if event:
                    yield event
                event = {}
            elif not line.startswith(":"):
                name, _, value = line.partition(":")
                event[name] = value.removeprefix(" ")

    async with (
        httpx2.AsyncClient(base_url=address, timeout=30) as client,
        client.stream("GET", path, headers=headers or {}) as answer,
    ):
        assert answer.status_code == 200, await answer.aread()
        yield parsed(answer.aiter_lines())
