"""Consumers read the ledger in order, from their stored position, at least once (DP-12)."""

from __future__ import annotations

from collections import deque
from itertools import islice

import pytest

from holdfast import App
from holdfast.errors import Conflict
from tests.app.conftest import NewApp
from tests.support.workers import work_off

pytestmark = pytest.mark.req("DP-12")


def names(app: App, consumer: str, page: int = 100) -> list[str]:
    return [event.name for event in app.events.read(consumer, page=page)]


def test_consumer_continues_where_it_stopped(app: App, new_app: NewApp) -> None:
    @app.job()
    def quick() -> None: ...

    quick.enqueue()
    assert names(app, "billing") == ["job.enqueue"]
    assert names(app, "billing") == []
    work_off(app)
    assert names(new_app(), "billing", page=1) == ["job.take", "job.succeed"]
    assert names(app, "billing") == []
    assert names(app, "audit") == ["job.enqueue", "job.take", "job.succeed"]


def test_consumer_that_stops_inside_a_page_reads_it_again(app: App) -> None:
    ids = [app.enqueue("x").id for _ in range(5)]
    seen = [event.job_id for event in islice(app.events.read("billing", page=2), 3)]  # stops within the second page
    assert seen == ids[:3]
    assert [event.job_id for event in app.events.read("billing", page=2)] == ids[2:]


def test_error_while_handling_an_event_loses_no_event(app: App) -> None:
    ids = [app.enqueue("x").id for _ in range(3)]
    with pytest.raises(ZeroDivisionError):
        deque(1 / 0 for _ in app.events.read("billing"))
    assert [event.job_id for event in app.events.read("billing")] == ids


def test_concurrent_reads_of_one_consumer_conflict(app: App, new_app: NewApp) -> None:
    for _ in range(3):
        app.enqueue("x")
    one, two = app.events.read("billing"), new_app().events.read("billing")
    next(one), next(two)
    assert len(list(one)) == 2
    with pytest.raises(Conflict) as caught:
        list(two)
    assert caught.value.code == "consumer_moved"


@pytest.mark.req("DP-12", "JF-1")
def test_tenants_have_separate_events_and_positions(app: App, new_app: NewApp) -> None:
    acme = new_app(tenant="acme")
    mine, theirs = app.enqueue("x").id, acme.enqueue("x").id
    assert [event.job_id for event in app.events.read("billing")] == [mine]
    assert [event.job_id for event in acme.events.read("billing")] == [theirs]


async def test_async_read_continues_where_it_stopped(app: App) -> None:
    ids = [(await app.aenqueue("x")).id for _ in range(5)]
    assert [event.job_id async for event in app.events.aread("billing", page=2)] == ids
    assert [event.job_id async for event in app.events.aread("billing", page=2)] == []
    await app.aclose()
