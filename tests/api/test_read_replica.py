"""A standby serves requests that only read, and no answer is older than its request."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import closing

import httpx2
import psycopg
import pytest

from holdfast import App
from holdfast.app.internals import session_of
from holdfast.server.app import make_service
from holdfast.server.auth import at_this_machine
from holdfast.stores.requests import Finding
from tests.support.standby import Pair
from tests.support.waiting import until

pytestmark = [pytest.mark.req("HF-14"), pytest.mark.slow]

FROM = "holdfast-read-from"


@pytest.fixture(scope="module")
def pair() -> Iterator[Pair]:
    with Pair(synchronous=False) as pair:
        yield pair


@pytest.fixture
def app(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> Iterator[App]:
    monkeypatch.setenv("HOLDFAST_READ_URL", pair.standby.dsn("app"))
    with closing(App(pair.primary.dsn("app"))) as app:
        yield app


def client_of(app: App) -> httpx2.AsyncClient:
    service = make_service(app, authenticate=at_this_machine(app))
    return httpx2.AsyncClient(transport=httpx2.ASGITransport(service), base_url="http://localhost", timeout=30)


def standby_finding(app: App) -> Finding:
    return next(each for each in session_of(app).store.diagnose() if each.name == "standby for reads")


async def test_reads_are_served_by_the_standby_and_find_what_was_written_before(app: App) -> None:
    async with client_of(app) as client:
        sources = []
        for number in range(20):
            made = await client.post("/api/v1/jobs", json={"kind": "work", "payload": {"n": number}})
            found = await client.get(f"/api/v1/jobs/{made.json()['id']}")
            assert found.status_code == 200, "the job that was just made"
            sources.append(found.headers.get(FROM))
            listed = await client.get("/api/v1/jobs?limit=1")
            assert listed.json()["items"][0]["id"] == made.json()["id"]
        # On a busy machine the standby may be late for any single request, which the primary answers then.
        assert "standby" in sources, sources
        async with asyncio.timeout(60):
            while not await came_from_standby(client, "/jobs"):
                pass
    await asyncio.to_thread(until, lambda: standby_finding(app).ok, "the standby follows")


async def came_from_standby(client: httpx2.AsyncClient, path: str) -> bool:
    page = await client.get(path)
    assert page.status_code == 200
    return page.headers.get(FROM) == "standby"


async def test_standby_that_does_not_follow_is_left_out(app: App, pair: Pair) -> None:
    with psycopg.connect(pair.standby.dsn(), autocommit=True) as session:
        session.execute("select pg_wal_replay_pause()")
        try:
            async with client_of(app) as client:
                made = await client.post("/api/v1/jobs", json={"kind": "work"})
                found = await client.get(f"/api/v1/jobs/{made.json()['id']}")
                assert (found.status_code, found.headers.get(FROM)) == (200, None)
            assert not (await asyncio.to_thread(standby_finding, app)).ok
        finally:
            session.execute("select pg_wal_replay_resume()")


@pytest.mark.parametrize("way", ["of another database", "that is down"])
async def test_unusable_standby_does_not_stop_requests(
    pair: Pair, postgres_url: str, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    unusable = postgres_url if way == "of another database" else "postgresql://postgres@127.0.0.1:1/app"
    monkeypatch.setenv("HOLDFAST_READ_URL", unusable)
    with closing(App(pair.primary.dsn("app"))) as app:
        async with client_of(app) as client:
            made = await client.post("/api/v1/jobs", json={"kind": "work"})
            found = await client.get(f"/api/v1/jobs/{made.json()['id']}")
            assert (found.status_code, found.headers.get(FROM)) == (200, None)
        finding = await asyncio.to_thread(standby_finding, app)
        assert not finding.ok
        assert ("not a copy" in finding.says) == (way == "of another database")
