"""The live event feed: one ledger reader per process, any number of listeners."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Any

import pytest

from holdfast import App
from holdfast.app.internals import session_of
from holdfast.engine.job import Event
from holdfast.errors import EventsGone
from holdfast.features.tokens.model import scopes_of
from holdfast.server.auth import Identity
from holdfast.server.live import FeedItem, LedgerFeed, ListenerBehind
from holdfast.stores.flow import Flow
from tests.api.serving import auntil, events_of, serving
from tests.support.features import keep, sweep
from tests.support.stores import forward


async def take(events: AsyncIterator[Any], count: int) -> list[Any]:
    async with asyncio.timeout(30):
        return [await anext(events) for _ in range(count)]


async def read_until(messages: AsyncIterator[dict[str, str]], field: str) -> AsyncIterator[dict[str, str]]:
    """The messages up to the first with this field."""
    async with asyncio.timeout(30):
        async for message in messages:
            yield message
            if field in message:
                return


@pytest.mark.req("JF-14", "DP-12")
async def test_listener_gets_events_of_its_tenant_in_order_from_its_position(app: App) -> None:
    session_of(app).make_ready()
    live = LedgerFeed(session_of(app))
    early = [app.enqueue("early", {"n": n}).id for n in range(3)]
    begin = session_of(app).run(session_of(app).store.ledger.read(None, 1, "default"))[0].cursor
    async with (
        aclosing(live.follow("default", after=begin)) as own,
        aclosing(live.follow("acme")) as acme,
        aclosing(live.follow("*")) as every,
    ):
        assert [event.job_id for event in await take(own, 2)] == early[1:]
        waiting = [asyncio.create_task(take(events, count)) for events, count in ((own, 2), (acme, 1), (every, 3))]
        await auntil(lambda: live.listeners == 3, "all three listen")
        first = app.enqueue("now", {}).id
        other = app.enqueue("now", {}, tenant="acme").id
        last = app.enqueue("now", {}).id
        result = [[event.job_id for event in await task] for task in waiting]
        assert result == [[first, last], [other], [first, other, last]]
    assert live.listeners == 0
    await auntil(lambda: all(watcher._task is None for watcher in live._watchers.values()), "the watchers sleep")


@pytest.mark.req("JF-14", "DP-12")
async def test_slow_listener_is_notified_misses_nothing_and_blocks_no_other(app: App) -> None:
    session_of(app).make_ready()
    live = LedgerFeed(session_of(app), queue=5)
    async with aclosing(live.follow("default")) as slow, aclosing(live.follow("default")) as quick:
        beginning = [asyncio.create_task(take(each, 1)) for each in (slow, quick)]
        await auntil(lambda: live.listeners == 2, "both listen")
        app.enqueue("first", {})
        for task in beginning:
            await task
        made: list[str] = []
        for _ in range(10):  # as many at a time as the queue of the quick listener holds
            made += [app.enqueue("many", {"n": n}).id for n in range(3)]
            heard = await take(quick, 3)
            assert [event.job_id for event in heard] == made[-3:]
        result: list[Event | ListenerBehind] = []
        while ListenerBehind() not in result or len(result) <= len(made):  # the notice may come before or after
            result += await take(slow, 1)
        assert [event.job_id for event in result if isinstance(event, Event)] == made


@pytest.mark.slow
@pytest.mark.req("JF-14")
@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
async def test_500_idle_listeners_query_as_often_as_one(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    session_of(app).make_ready()
    live = LedgerFeed(session_of(app))
    queries, arun = [0], session_of(app).store.arun

    async def counted(flow: Flow[Any]) -> Any:
        queries[0] += 1
        return await arun(flow)

    position = await live.place("default")
    monkeypatch.setattr(session_of(app).store, "arun", counted)
    following = [live.follow("default", after=position) for _ in range(500)]
    tasks = [asyncio.create_task(take(each, 1)) for each in following]
    await auntil(lambda: live.listeners == 500 and queries[0] >= 500, "all listen, and have read once")

    async def queries_per_interval() -> int:
        before = queries[0]
        await asyncio.sleep(1.2)
        return queries[0] - before

    seen, tries = await queries_per_interval(), 1
    while seen > 10 and tries < 20:  # on a busy machine some read for the first time only now
        seen, tries = await queries_per_interval(), tries + 1
    assert seen <= 10, "one query per interval for all of them, not one each"
    app.enqueue("now", {})
    await asyncio.gather(*tasks)
    await live.aclose()
    for each in following:
        await each.aclose()


@pytest.mark.req("JF-14")
async def test_listeners_end_when_service_stops(app: App) -> None:
    session_of(app).make_ready()
    live = LedgerFeed(session_of(app))

    async def all_of(events: AsyncGenerator[Event | ListenerBehind | FeedItem, None]) -> list[Any]:
        return [event async for event in events]

    task = asyncio.create_task(all_of(live.follow("default")))
    await auntil(lambda: live.listeners == 1, "the listener is registered")
    await live.aclose()
    async with asyncio.timeout(10):
        assert await task == []


@pytest.mark.req("JF-14", "JF-1", "DP-12")
async def test_stream_continues_after_last_event_id(app: App) -> None:
    viewer = Identity("a viewer", "acme", scopes_of(["viewer"]))
    session_of(app).make_ready()
    async with serving(app, lambda _: viewer) as address:
        async with events_of(address) as messages:
            position = (await take(messages, 1))[0]["id"]
            app.enqueue("mail", {"to": "not acme"})
            with app.tenant("acme"):
                first = app.enqueue("mail", {"to": "ada"})
                app.enqueue("other", {})
            heard = await take(messages, 2)
            assert [event["event"] for event in heard] == ["job.enqueue", "job.enqueue"]
            assert json.loads(heard[0]["data"])["job_id"] == first.id
        with app.tenant("acme"):
            app.enqueue("mail", {"to": "nobody"}, queue="elsewhere")
            missed = app.enqueue("mail", {"to": "bob"})
        later = "/api/v1/events/stream?kind=mail&type=enqueue&queue=default&queue=other"
        async with events_of(address, later, {"last-event-id": heard[0]["id"]}) as messages:
            again = [each async for each in read_until(messages, "data")][-1]
            assert json.loads(again["data"])["job_id"] == missed.id
        assert position != again["id"]


@pytest.mark.req("JF-14", "DP-12")
async def test_cursor_inside_a_transaction_misses_no_event(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    """A position in the middle of a page is older: newer events are on the next page."""
    session_of(app).make_ready()
    together = app.enqueue_many(app.prepare("many", {"n": n}) for n in range(7))
    monkeypatch.setattr("holdfast.server.live.PAGE", 3)
    half = session_of(app).run(session_of(app).store.ledger.read(None, 3, "default"))[1].cursor
    later = [app.enqueue("later", {"n": n}).id for n in range(2)]
    async with aclosing(LedgerFeed(session_of(app)).follow("default", after=half)) as events:
        result = [event.job_id for event in await take(events, 7)]
    assert result == [*(handle.id for handle in together[2:]), *later]


def purge(app: App) -> None:
    """Purge every finished job."""
    keep(session_of(app).store, purge="1d")
    for _ in range(2):  # one pass finds what the other left
        forward(session_of(app).store, 2 * 86_400)
        sweep(session_of(app).store)
        app.enqueue("later")  # the job of the last event is kept


@pytest.mark.req("JF-14", "DP-12", "CX-12")
async def test_filtered_stream_advances_past_other_events(app: App) -> None:
    """The position of a filtered stream advances past events that do not match, so that purging those is no gap."""
    viewer = Identity("a viewer", "default", scopes_of(["viewer"]))
    session_of(app).make_ready()
    path = "/api/v1/events/stream?kind=wanted"
    async with serving(app, lambda _: viewer) as address, events_of(address, path) as messages:
        seen = (await take(messages, 1))[0]["id"]
        app.enqueue("other").cancel()
        while session_of(app).run(session_of(app).store.subscriptions.behind(seen, True, "default")):
            (passed,) = await take(messages, 1)
            assert set(passed) == {"id"}
            seen = passed["id"]
    purge(app)
    assert session_of(app).run(session_of(app).store.ledger.gone(seen, "default")) is None


@pytest.mark.req("JF-14", "DP-12", "CX-12")
async def test_late_reader_reports_a_gap_to_its_listeners(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the service cannot read the ledger for longer than retention keeps it, no listener skips the gap silently."""
    session_of(app).make_ready()
    monkeypatch.setattr("holdfast.server.live.LATE", -1.0)
    live = LedgerFeed(session_of(app))
    async with aclosing(live.follow("default")) as events:
        first = asyncio.create_task(take(events, 1))
        await auntil(lambda: live.listeners == 1, "the listener is registered")
        (watcher,) = live._watchers.values()
        app.enqueue("heard")
        await first
        read, release = watcher._read, asyncio.Event()

        async def held() -> bool:
            await release.wait()
            return await read()

        monkeypatch.setattr(watcher, "_read", held)
        following = asyncio.create_task(take(events, 2))
        await asyncio.sleep(0)
        app.enqueue("missed").cancel()
        purge(app)
        release.set()
        with pytest.raises(EventsGone):
            await following
    assert live.listeners == 0
    await live.aclose()
    await session_of(app).store.leave_loop()
