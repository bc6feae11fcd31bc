"""HTTP semantics over a real socket: HEAD, methods, content types, caching, disconnects, and revoked tokens."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator

import httpx2
import pytest

from holdfast import App
from holdfast.app.internals import session_of
from holdfast.server.auth import StreamAccess
from holdfast.server.sessions import tokens_of
from tests.api.conftest import client_of
from tests.api.serving import auntil, events_of, serving


@pytest.mark.slow
@pytest.mark.req("JF-14")
@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
async def test_head_has_no_body_and_405_lists_allowed_methods(app: App) -> None:
    async with serving(app) as address, httpx2.AsyncClient(base_url=address, timeout=10) as http:
        for path in ("/livez", "/readyz", "/metrics", "/api/v1/jobs", "/api/v1/openapi.json", "/", "/jobs"):
            seen, head = await http.get(path), await http.head(path)
            assert (head.status_code, head.content) == (200, b""), path
            assert head.headers["content-type"] == seen.headers["content-type"]
        stream = await http.head("/api/v1/events/stream")  # the response ends
        assert stream.headers["content-type"].startswith("text/event-stream")
        for method in ("PUT", "OPTIONS", "TRACE"):
            wrong = await http.request(method, "/api/v1/jobs")
            assert (wrong.status_code, wrong.headers["allow"]) == (405, "GET, POST, HEAD"), method
        assert (await http.request("PUT", "/api/v1/none")).status_code == 404
        assert (await http.head("/api/v1/none")).status_code == 404


@pytest.mark.req("JF-14")
@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
async def test_chunked_body_over_limit_is_rejected(app: App) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(9):
            yield b" " * 1_000_000

    async with client_of(app) as http:
        for path in ("/api/v1/jobs", "/api/v1/jobs/batch", "/api/v1/operations"):
            answer = await http.post(path, content=pieces(), headers={"content-type": "application/json"})
            assert (answer.status_code, answer.json()["code"]) == (413, "body_too_large"), path


@pytest.mark.req("JF-14", "JF-16")
@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
async def test_other_content_type_is_rejected(app: App) -> None:
    body = b'{"kind": "x", "jobs": [{"kind": "x"}]}'
    async with client_of(app) as http:
        for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "json"):
            for path in ("/api/v1/jobs", "/api/v1/jobs/batch", "/api/v1/events", "/api/v1/none"):
                refused = await http.post(path, content=body, headers={"content-type": kind})
                assert (refused.status_code, refused.json()["code"]) == (415, "not_json"), (path, kind)
        assert session_of(app).run(session_of(app).store.ledger.read(None, 10, "default")) == []
        for kind in ("application/json", "application/json; charset=utf-8", "Application/Vnd.Of.Ours+JSON"):
            assert (
                await http.post("/api/v1/jobs", content=b'{"kind": "x"}', headers={"content-type": kind})
            ).status_code == 201
        assert (await http.post("/api/v1/jobs", content=b'{"kind": "x"}')).status_code == 201
        assert (await http.post("/theme", data={"theme": "dark"})).status_code == 303


@pytest.mark.req("JF-14", "JF-13")
@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
async def test_client_that_disconnects_mid_request_causes_no_error(app: App, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    paths = ("/api/v1/jobs", "/api/v1/jobs/batch", "/theme")
    async with serving(app) as address:
        for path in paths:
            _, writer = await asyncio.open_connection("127.0.0.1", httpx2.URL(address).port)
            kind = "application/x-www-form-urlencoded" if path == "/theme" else "application/json"
            begun = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: {kind}\r\nContent-Length: 90\r\n\r\n"
            writer.write(f'{begun}{{"kind":'.encode())
            await writer.drain()
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

        def request_logs() -> list[logging.LogRecord]:
            return [record for record in caplog.records if record.name == "holdfast.http"]

        await auntil(lambda: len(request_logs()) == len(paths), "each request is logged")
    assert sorted(record.__dict__["route"] for record in request_logs()) == sorted(paths)  # with the router's prefix
    assert all(record.__dict__["status"] < 500 for record in request_logs())
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


@pytest.mark.slow
@pytest.mark.req("JF-14", "JF-16")
@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
async def test_only_static_files_are_cacheable(app: App) -> None:
    """Otherwise a chosen name could make a proxy cache private data (web cache deception)."""
    async with client_of(app) as http:
        await http.put("/api/v1/agents/static/a.css", json={"name": "mine"})
        cached = {path: (await http.get(path)).headers["cache-control"] for path in CACHE_CONTROL}
    assert cached == CACHE_CONTROL


CACHE_CONTROL = {
    "/static/live.js": "public, max-age=3600",
    "/static/none.js": "no-store",
    "/api/v1/agents/static/a.css": "no-store",
    "/jobs/static/x": "no-store",
}


@pytest.mark.slow
@pytest.mark.req("JF-14", "DP-12")
async def test_stream_ends_when_its_token_is_revoked(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StreamAccess.__init__, "__defaults__", (0.0,))
    session_of(app).make_ready()
    good, bad = [await app.tokens.aissue(name, roles=["viewer"]) for name in ("stays", "leaves")]
    by = [{"Authorization": f"Bearer {each.text}"} for each in (good, bad)]
    async with (
        serving(app, tokens_of(app, remember=0)) as address,
        events_of(address, headers=by[0]) as kept_stream,
        events_of(address, headers=by[1]) as revoked_stream,
        events_of(address, "/live", headers=by[1]) as page,
    ):
        async with asyncio.timeout(30):
            for events in (kept_stream, revoked_stream, page):
                await anext(events)
            await app.aenqueue("before", {})
            for events in (kept_stream, revoked_stream):
                assert (await anext(events))["event"] == "job.enqueue"
            await app.tokens.arevoke(bad.token.id)
            await app.aenqueue("after", {})
            assert (await anext(kept_stream))["event"] == "job.enqueue"
            with pytest.raises(StopAsyncIteration):
                await anext(revoked_stream)
            while await anext(page, None):
                await app.aenqueue("more", {})
