"""Fault 53: clients whom nobody knows send bodies that never end, heads that never end, and nothing at all, to the
server that `holdfast serve` runs. Each is cut off at its limit, and others are served meanwhile.

How quick `/livez` stays beside the worst bodies is measured by `bench/hostile.py`. Here is what does not depend on
the machine: `tests/api/test_request_bodies.py` counts what is read, this file looks at what becomes of connections.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import closing

import pytest

from holdfast import App
from holdfast.cli import serve
from holdfast.cli.connections import LARGEST_HEAD

pytestmark = pytest.mark.req("JF-14", "SC-13")

TIMEOUT = 0.3
PATIENCE = 60.0
POST = "POST {} HTTP/1.1\r\nHost: x\r\nContent-Type: {}\r\nContent-Length: {}\r\n\r\n"
GET = b"GET /livez HTTP/1.1\r\nHost: x\r\n"
FORM = "application/x-www-form-urlencoded"


@contextlib.asynccontextmanager
async def serving(url: str) -> AsyncIterator[int]:
    """The port of the server, with a short patience."""
    with closing(App(url)) as app:
        app._session.make_ready()
        listening = serve.listen("127.0.0.1", 0)
        site = serve.make_web(app, local=False, body_timeout=TIMEOUT)
        async with serve.serving(site, listening, body_timeout=TIMEOUT):
            yield listening.getsockname()[1]


async def exchanged(port: int, *pieces: bytes) -> bytes:
    """All that the server says until it hangs up, which it has to: whoever sent this never does."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        async with asyncio.timeout(PATIENCE):
            with contextlib.suppress(ConnectionError):
                for piece in pieces:
                    writer.write(piece)
                    await writer.drain()
            said = b""
            with contextlib.suppress(ConnectionError):
                while piece := await reader.read(65536):
                    said += piece
            return said
    finally:
        writer.close()


def head(path: str, length: int, kind: str = FORM) -> bytes:
    return POST.format(path, kind, length).encode()


async def test_whatever_does_not_come_to_its_end_is_hung_up_on(new_sqlite_url: str) -> None:
    async with serving(new_sqlite_url) as port:
        never = {
            "nothing": exchanged(port),
            "half a request line": exchanged(port, b"GET /hea"),
            "half a head": exchanged(port, b"GET /livez HTTP/1.1\r\nHost: x\r\nA: "),
            "half a body": exchanged(port, head("/login", 1_000), b"token="),
            "half a body of nobody": exchanged(port, head("/api/v1/jobs", 1_000, "application/json"), b"{"),
            "a body that nobody reads": exchanged(port, b"GET /livez HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n"),
            "a second request": exchanged(port, GET + b"\r\nGET /livez HT"),
        }
        said = dict(zip(never, await asyncio.gather(*never.values()), strict=True))
        answered = {name: text.split(b"\r\n")[0].split(b" ")[1:2] for name, text in said.items()}
        assert answered == {
            "nothing": [],
            "half a request line": [],
            "half a head": [],
            "half a body": [b"408"],
            "half a body of nobody": [b"401"],
            "a body that nobody reads": [b"200"],
            "a second request": [b"200"],
        }
        assert b"body_too_slow" in said["half a body"]


async def test_a_head_ends_at_its_limit(new_sqlite_url: str) -> None:
    async with serving(new_sqlite_url) as port:
        for start in (b"GET /livez HTTP/1.1\r\nHost: x\r\nA: ", b"GET /livez?", b"GET /livez HTTP/1.1\r\n"):
            filling = b"B: x\r\n" if start.endswith(b"\n") else b"x"
            said = await exchanged(port, start, *[filling * 1_000] * (1 + 2 * LARGEST_HEAD // (1_000 * len(filling))))
            assert said == b"" or said.startswith(b"HTTP/1.1 400"), said[:100]
        ordinary = b"GET /livez HTTP/1.1\r\nHost: x\r\nA: " + b"x" * 8_000 + b"\r\nConnection: close\r\n\r\n"
        assert (await exchanged(port, ordinary)).startswith(b"HTTP/1.1 200")


@pytest.mark.slow
async def test_a_connection_that_is_used_is_kept(new_sqlite_url: str) -> None:
    """Longer than a connection may wait for its next request: each look finds another one answered."""
    async with serving(new_sqlite_url) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        loop = asyncio.get_running_loop()
        until = loop.time() + 4 * TIMEOUT
        while loop.time() < until:
            writer.write(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
            async with asyncio.timeout(PATIENCE):
                assert (await reader.readuntil(b"ok\n")).startswith(b"HTTP/1.1 200")
        writer.close()


@pytest.mark.slow
async def test_others_are_served_beside_hostile_bodies(new_sqlite_url: str) -> None:
    body = b'{"verdict":"approve",' + b",".join(b'"%x":1' % n for n in range(5_000)) + b"}"
    async with serving(new_sqlite_url) as port:
        hostile = [
            exchanged(port, head(path, len(body), "application/json") + body)
            for path in ("/api/v1/approvals/by-token/x", "/api/v1/approvals/by-token/hfa_" + "0" * 32 + "_" + "a" * 43)
            for _ in range(4)
        ]
        served = exchanged(port, b"GET /livez HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        *answers, health = await asyncio.gather(*hostile, served)
        assert health.endswith(b"ok\n")
        assert {answer.split(b" ")[1] for answer in answers} == {b"404"}
