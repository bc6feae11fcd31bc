"""Fault 53: anonymous clients send endless bodies, endless headers, or nothing to `holdfast serve`. Each connection is
closed at its limit, and other clients are served meanwhile.

`bench/hostile.py` measures the latency of `/livez` under such load. These tests do not depend on the machine:
`tests/api/test_request_bodies.py` counts the bytes read, this file checks the connections.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import closing

import pytest

from holdfast import App
from holdfast.app.internals import session_of
from holdfast.cli import serve
from holdfast.cli.connections import LARGEST_HEAD

pytestmark = pytest.mark.req("JF-14", "SC-13")

TIMEOUT = 0.3
GIVE_UP = 60.0
POST = "POST {} HTTP/1.1\r\nHost: x\r\nContent-Type: {}\r\nContent-Length: {}\r\n\r\n"
GET = b"GET /livez HTTP/1.1\r\nHost: x\r\n"
FORM = "application/x-www-form-urlencoded"


@contextlib.asynccontextmanager
async def serving(url: str) -> AsyncIterator[int]:
    """Run a server with a short timeout; yields its port."""
    with closing(App(url)) as app:
        session_of(app).make_ready()
        listening = serve.listen("127.0.0.1", 0)
        site = serve.make_web(app, local=False, body_timeout=TIMEOUT)
        async with serve.serving(site, listening, body_timeout=TIMEOUT):
            yield listening.getsockname()[1]


async def exchange(port: int, *pieces: bytes) -> bytes:
    """Send the pieces and read until the server closes the connection; the client never does."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        async with asyncio.timeout(GIVE_UP):
            with contextlib.suppress(ConnectionError):
                for piece in pieces:
                    writer.write(piece)
                    await writer.drain()
            response = b""
            with contextlib.suppress(ConnectionError):
                while piece := await reader.read(65536):
                    response += piece
            return response
    finally:
        writer.close()


def head(path: str, length: int, kind: str = FORM) -> bytes:
    return POST.format(path, kind, length).encode()


async def test_incomplete_requests_are_closed(new_sqlite_url: str) -> None:
    async with serving(new_sqlite_url) as port:
        incomplete = {
            "nothing": exchange(port),
            "half a request line": exchange(port, b"GET /hea"),
            "half a head": exchange(port, b"GET /livez HTTP/1.1\r\nHost: x\r\nA: "),
            "half a body": exchange(port, head("/login", 1_000), b"token="),
            "half an unauthenticated body": exchange(port, head("/api/v1/jobs", 1_000, "application/json"), b"{"),
            "an unread body": exchange(port, b"GET /livez HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n"),
            "a second request": exchange(port, GET + b"\r\nGET /livez HT"),
        }
        responses = dict(zip(incomplete, await asyncio.gather(*incomplete.values()), strict=True))
        statuses = {name: text.split(b"\r\n")[0].split(b" ")[1:2] for name, text in responses.items()}
        assert statuses == {
            "nothing": [],
            "half a request line": [],
            "half a head": [],
            "half a body": [b"408"],
            "half an unauthenticated body": [b"401"],
            "an unread body": [b"200"],
            "a second request": [b"200"],
        }
        assert b"body_too_slow" in responses["half a body"]


async def test_headers_over_the_limit_are_refused(new_sqlite_url: str) -> None:
    async with serving(new_sqlite_url) as port:
        for start in (b"GET /livez HTTP/1.1\r\nHost: x\r\nA: ", b"GET /livez?", b"GET /livez HTTP/1.1\r\n"):
            filling = b"B: x\r\n" if start.endswith(b"\n") else b"x"
            pieces = [filling * 1_000] * (1 + 2 * LARGEST_HEAD // (1_000 * len(filling)))
            response = await exchange(port, start, *pieces)
            assert response == b"" or response.startswith(b"HTTP/1.1 400"), response[:100]
        ordinary = b"GET /livez HTTP/1.1\r\nHost: x\r\nA: " + b"x" * 8_000 + b"\r\nConnection: close\r\n\r\n"
        assert (await exchange(port, ordinary)).startswith(b"HTTP/1.1 200")


@pytest.mark.slow
async def test_active_connection_is_kept_open(new_sqlite_url: str) -> None:
    """Requests continue for longer than an idle connection may stay open."""
    async with serving(new_sqlite_url) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        loop = asyncio.get_running_loop()
        until = loop.time() + 4 * TIMEOUT
        while loop.time() < until:
            writer.write(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
            async with asyncio.timeout(GIVE_UP):
                assert (await reader.readuntil(b"ok\n")).startswith(b"HTTP/1.1 200")
        writer.close()


@pytest.mark.slow
async def test_other_clients_are_served_beside_hostile_bodies(new_sqlite_url: str) -> None:
    body = b'{"verdict":"approve",' + b",".join(b'"%x":1' % n for n in range(5_000)) + b"}"
    async with serving(new_sqlite_url) as port:
        hostile = [
            exchange(port, head(path, len(body), "application/json") + body)
            for path in ("/api/v1/approvals/by-token/x", "/api/v1/approvals/by-token/hfa_" + "0" * 32 + "_" + "a" * 43)
            for _ in range(4)
        ]
        served = exchange(port, b"GET /livez HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        *responses, health = await asyncio.gather(*hostile, served)
        assert health.endswith(b"ok\n")
        assert {response.split(b" ")[1] for response in responses} == {b"404"}
