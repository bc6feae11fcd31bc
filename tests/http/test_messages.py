"""Messages, values and streams over HTTP: the client, server-sent events with resume, the command line and the page."""

from __future__ import annotations

import json
import threading
from typing import Any

import httpx2
import pytest

from holdfast import App, Context, PayloadPolicy, SyncContext
from holdfast.errors import Conflict, Refused
from tests.http.conftest import TOKEN, Driver, service_of
from tests.support.http_server import serving
from tests.support.workers import work_off, working

pytestmark = [pytest.mark.req("HF-11", "HF-17"), pytest.mark.parametrize("url", ["sqlite"], indirect=True)]

CANARY = "canary-4711"
HEADERS = {"authorization": f"Bearer {TOKEN}"}


def declare(app: App) -> None:
    @app.job("talk")
    async def talk(ctx: Context) -> str:
        await ctx.stream("out").write("hello")
        await ctx.publish("ready", {"yes": True})
        question = await ctx.receive("double", type=int)
        await ctx.answer(question, 2 * question.data)
        for n in range(3):
            await ctx.stream("out").write({"n": n})
        return "done"


def follow(base: str, job_id: str, name: str = "out", after: str | None = None) -> list[tuple[str, str | None, Any]]:
    """The messages of the live stream: event, id and data."""
    headers = HEADERS | ({} if after is None else {"last-event-id": after})
    found, event, ident = [], "", None
    with httpx2.stream("GET", f"{base}/api/v1/jobs/{job_id}/streams/{name}/live", headers=headers) as response:
        assert response.status_code == 200, response.read()
        for line in response.iter_lines():
            match line.partition(":")[::2]:
                case ("event", text):
                    event = text.strip()
                case ("id", text):
                    ident = text.strip()
                case ("data", text):
                    found.append((event, ident, json.loads(text)))
                    if event == "end":
                        return found
    return found


@pytest.mark.parametrize("form", ["blocking", "awaiting"])
def test_client_talks_to_a_job(app: App, base: str, form: str) -> None:
    declare(app)
    driver = Driver(form, base)
    try:
        with working(app):
            handle = driver.do(lambda client: client.enqueue("talk"))
            job = handle.id
            assert driver.do(lambda c: c.jobs.handle(job).wait_for_value("ready", timeout=20)) == {"yes": True}
            with pytest.raises(Refused, match="valid integer"):
                driver.do(lambda c: c.jobs.handle(job).ask("double", "much", timeout=20))
            assert driver.do(lambda c: c.jobs.handle(job).ask("double", 21, timeout=20)) == 42
            chunks = list(handle.stream("out")) if driver.blocking else driver.loop.run_until_complete(taken(handle))
            assert [chunk.data for chunk in chunks] == ["hello", {"n": 0}, {"n": 1}, {"n": 2}]
            with pytest.raises(Conflict, match="receives no more"):
                driver.do(lambda c: c.jobs.send(job, "double", 1))
    finally:
        driver.close()


@pytest.mark.slow
def test_client_reads_a_long_stream_page_by_page(app: App, base: str) -> None:
    @app.job("long")
    async def long(ctx: Context) -> None:
        for n in range(60):
            await ctx.stream("out").write(f"{n:05}" + "x" * 50_000)

    handle = app.enqueue("long")
    work_off(app)
    driver = Driver("blocking", base)
    try:
        chunks = list(driver.client.jobs.handle(handle.id).stream("out"))
    finally:
        driver.close()
    assert [int(chunk.data[:5]) for chunk in chunks] == list(range(60))


async def taken(handle: Any) -> list[Any]:
    return [chunk async for chunk in handle.stream("out")]


def test_server_sent_events_are_live_and_resume(app: App, base: str) -> None:
    declare(app)
    handle = app.enqueue("talk")
    with working(app):
        threading.Timer(0.5, lambda: handle.send("double", 1)).start()
        messages = follow(base, handle.id)
    assert [(event, data.get("data")) for event, _, data in messages] == [
        ("chunk", "hello"),
        *(("chunk", {"n": n}) for n in range(3)),
        ("end", None),
    ]
    again = follow(base, handle.id, after=messages[1][1])
    assert again == messages[2:]
    refused = httpx2.get(f"{base}/api/v1/jobs/{handle.id}/streams/out/live?after=x", headers=HEADERS)
    assert refused.status_code == 422 or refused.status_code == 400, refused.text
    missing = httpx2.get(f"{base}/api/v1/jobs/01a1de74-eb8c-70f1-843b-cac5f6817387/streams/out/live", headers=HEADERS)
    assert missing.status_code == 404


def test_restricted_streams_are_hidden_over_http(app: App) -> None:
    @app.job("talk", payload_rules=PayloadPolicy(restricted=True))
    def talk(ctx: SyncContext) -> None:
        ctx.stream("out").write(CANARY)
        ctx.publish("state", CANARY)
        ctx.answer(ctx.receive("ask"), CANARY)

    handle = app.enqueue("talk")
    handle.send("ask", CANARY)
    sent = handle.send("ask", CANARY, key="k")
    work_off(app)
    with serving(service_of(app, roles=("viewer",))) as origin:
        base = f"{origin}/below/here"
        paths = ("values", "values/state", "streams", "streams/out", "steps", f"messages/{sent.id}/answer", "")
        for path in paths:
            response = httpx2.get(f"{base}/api/v1/jobs/{handle.id}/{path}".rstrip("/"), headers=HEADERS)
            assert response.status_code == 200, response.text
            assert CANARY not in response.text, path
        ((event, _, chunk), _) = follow(base, handle.id)
        assert (event, chunk["data"]) == ("chunk", "[restricted]")
        page = httpx2.get(f"{base}/jobs/{handle.id}", headers=HEADERS)
        assert page.status_code == 200
        assert "Output stream out" in page.text
        assert CANARY not in page.text
        # A viewer reads, and does not send.
        refused = httpx2.post(f"{base}/api/v1/jobs/{handle.id}/messages", headers=HEADERS, json={"name": "ask"})
        assert refused.status_code == 403


def test_page_shows_the_stream_and_where_to_follow_it(app: App, base: str) -> None:
    declare(app)

    @app.job("hostile")
    async def hostile(ctx: Context) -> None:
        await ctx.stream("<b>").write("<script>alert(1)</script>")

    waiting, done = app.enqueue("talk"), app.enqueue("hostile")
    work_off(app)
    page = httpx2.get(f"{base}/jobs/{waiting.id}", headers=HEADERS).text
    assert f'data-stream="/below/here/api/v1/jobs/{waiting.id}/streams/out/live" data-after="1-1-1"' in page
    assert '<span data-section="0">hello</span>' in page
    page = httpx2.get(f"{base}/jobs/{done.id}", headers=HEADERS).text
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert "data-stream" not in page
