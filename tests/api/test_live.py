"""What happens, told as it happens: one reader of the ledger a process, any number of listeners."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Any

import pytest

from holdfast import App
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


async def told_until(told: AsyncIterator[dict[str, str]], field: str) -> AsyncIterator[dict[str, str]]:
    """What is told, through the first that has this field."""
    async with asyncio.timeout(30):
        async for each in told:
            yield each
            if field in each:
                return


@pytest.mark.req("JF-14", "DP-12")
async def test_each_listener_hears_of_its_own_tenant_in_order_and_from_its_own_place(app: App) -> None:
    app._session.make_ready()
    live = LedgerFeed(app._session)
    early = [app.enqueue("early", {"n": n}).id for n in range(3)]
    begin = app._session.run(app._session.store.ledger.read(None, 1, "default"))[0].cursor
    async with (
        aclosing(live.follow("default", after=begin)) as own,
        aclosing(live.follow("acme")) as acme,
        aclosing(live.follow("*")) as every,
    ):
        assert [event.job_id for event in await take(own, 2)] == early[1:]
        waiting = [asyncio.create_task(take(each, count)) for each, count in ((own, 2), (acme, 1), (every, 3))]
        await auntil(lambda: live.listeners == 3, "all three listen")
        first = app.enqueue("now", {}).id
        other = app.enqueue("now", {}, tenant="acme").id
        last = app.enqueue("now", {}).id
        told = [[event.job_id for event in await task] for task in waiting]
        assert told == [[first, last], [other], [first, other, last]]
    assert live.listeners == 0
    await auntil(lambda: all(watcher._task is None for watcher in live._watchers.values()), "it sleeps")


@pytest.mark.req("JF-14", "DP-12")
async def test_a_slow_listener_is_told_and_misses_nothing_and_holds_up_nobody(app: App) -> None:
    app._session.make_ready()
    live = LedgerFeed(app._session, queue=5)
    async with aclosing(live.follow("default")) as slow, aclosing(live.follow("default")) as quick:
        beginning = [asyncio.create_task(take(each, 1)) for each in (slow, quick)]
        await auntil(lambda: live.listeners == 2, "both listen")
        app.enqueue("first", {})
        for task in beginning:
            await task
        made: list[str] = []
        for _ in range(10):  # as many at a time as the quick one has room for
            made += [app.enqueue("many", {"n": n}).id for n in range(3)]
            heard = await take(quick, 3)
            assert [event.job_id for event in heard] == made[-3:]
        told: list[Event | ListenerBehind] = []
        while ListenerBehind() not in told or len(told) <= len(
            made
        ):  # whether it is told before or after is as it may be
            told += await take(slow, 1)
        assert [event.job_id for event in told if isinstance(event, Event)] == made


@pytest.mark.slow
@pytest.mark.req("JF-14")
@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
async def test_five_hundred_idle_listeners_cost_what_one_does(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    app._session.make_ready()
    live = LedgerFeed(app._session)
    asked, arun = [0], app._store.arun

    async def counted(flow: Flow[Any]) -> Any:
        asked[0] += 1
        return await arun(flow)

    place = await live.place("default")
    monkeypatch.setattr(app._store, "arun", counted)
    following = [live.follow("default", after=place) for _ in range(500)]
    tasks = [asyncio.create_task(take(each, 1)) for each in following]
    await auntil(lambda: live.listeners == 500 and asked[0] >= 500, "all listen, and have looked once themselves")

    async def looks() -> int:
        before = asked[0]
        await asyncio.sleep(1.2)
        return asked[0] - before

    seen, tries = await looks(), 1
    while seen > 10 and tries < 20:  # on a busy machine some of them look for the first time only now
        seen, tries = await looks(), tries + 1
    assert seen <= 10, "one look in a while for all of them, not one each"
    app.enqueue("now", {})
    await asyncio.gather(*tasks)
    await live.aclose()
    for each in following:
        await each.aclose()


@pytest.mark.req("JF-14")
async def test_whoever_listens_is_let_go_when_the_service_ends(app: App) -> None:
    app._session.make_ready()
    live = LedgerFeed(app._session)

    async def all_of(events: AsyncGenerator[Event | ListenerBehind | FeedItem, None]) -> list[Any]:
        return [event async for event in events]

    task = asyncio.create_task(all_of(live.follow("default")))
    await auntil(lambda: live.listeners == 1, "it listens")
    await live.aclose()
    async with asyncio.timeout(10):
        assert await task == []


@pytest.mark.req("JF-14", "JF-1", "DP-12")
async def test_a_stream_goes_on_where_it_was_broken_off(app: App) -> None:
    viewer = Identity("a viewer", "acme", scopes_of(["viewer"]))
    app._session.make_ready()
    async with serving(app, lambda _: viewer) as address:
        async with events_of(address) as told:
            place = (await take(told, 1))[0]["id"]
            app.enqueue("mail", {"to": "not acme"})
            with app.tenant("acme"):
                first = app.enqueue("mail", {"to": "ada"})
                app.enqueue("other", {})
            heard = await take(told, 2)
            assert [event["event"] for event in heard] == ["job.enqueue", "job.enqueue"]
            assert json.loads(heard[0]["data"])["job_id"] == first.id
        with app.tenant("acme"):
            app.enqueue("mail", {"to": "nobody"}, queue="elsewhere")
            missed = app.enqueue("mail", {"to": "bob"})
        later = "/api/v1/events/stream?kind=mail&type=enqueue&queue=default&queue=other"
        async with events_of(address, later, {"last-event-id": heard[0]["id"]}) as told:
            again = [each async for each in told_until(told, "data")][-1]
            assert json.loads(again["data"])["job_id"] == missed.id
        assert place != again["id"]


@pytest.mark.req("JF-14", "DP-12")
async def test_from_the_middle_of_what_was_committed_together_nothing_is_missed(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A place half-way through a page is one of an older time: what came since is on the next page, not on this."""
    app._session.make_ready()
    together = app.enqueue_many(app.prepare("many", {"n": n}) for n in range(7))
    monkeypatch.setattr("holdfast.server.live.PAGE", 3)
    half = app._session.run(app._session.store.ledger.read(None, 3, "default"))[1].cursor
    later = [app.enqueue("later", {"n": n}).id for n in range(2)]
    async with aclosing(LedgerFeed(app._session).follow("default", after=half)) as events:
        told = [event.job_id for event in await take(events, 7)]
    assert told == [*(handle.id for handle in together[2:]), *later]


def purge(app: App) -> None:
    """All that has ended goes."""
    keep(app._store, purge="1d")
    for _ in range(2):  # one pass finds what the other has left
        forward(app._store, 2 * 86_400)
        sweep(app._store)
        app.enqueue("later")  # the job of the last event stays


@pytest.mark.req("JF-14", "DP-12", "CX-12")
async def test_who_wants_few_of_them_is_not_told_of_what_it_did_not_want(app: App) -> None:
    """It has heard of all that happened, though nothing of it was for it: its place has gone on, and nothing that
    retention takes up to there is a gap to it."""
    viewer = Identity("a viewer", "default", scopes_of(["viewer"]))
    app._session.make_ready()
    path = "/api/v1/events/stream?kind=wanted"
    async with serving(app, lambda _: viewer) as address, events_of(address, path) as told:
        seen = (await take(told, 1))[0]["id"]
        app.enqueue("other").cancel()
        while app._session.run(app._session.store.subscriptions.behind(seen, True, "default")):
            (passed,) = await take(told, 1)
            assert set(passed) == {"id"}
            seen = passed["id"]
    purge(app)
    assert app._session.run(app._session.store.ledger.gone(seen, "default")) is None


@pytest.mark.req("JF-14", "DP-12", "CX-12")
async def test_a_listener_whose_reader_was_late_is_told_of_a_gap(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    """The service could not read the ledger for longer than retention keeps it: nobody who listened skips it."""
    app._session.make_ready()
    monkeypatch.setattr("holdfast.server.live.LATE", -1.0)
    live = LedgerFeed(app._session)
    async with aclosing(live.follow("default")) as events:
        first = asyncio.create_task(take(events, 1))
        await auntil(lambda: live.listeners == 1, "it listens")
        (watcher,) = live._watchers.values()
        app.enqueue("heard")
        await first
        look, release = watcher._read, asyncio.Event()

        async def held() -> bool:
            await release.wait()
            return await look()

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
    await app._store.leave_loop()
