"""How a worker begins: with the jobs that are there. What it does besides comes when it rests, or soon."""

from __future__ import annotations

import queue
from collections.abc import Callable

import pytest

from holdfast import App, Handle
from holdfast.features.assembly import Store
from holdfast.stores.listener import Names
from holdfast.worker import worker
from holdfast.worker.maintenance import MaintenanceTask
from tests.app.conftest import NewApp
from tests.support.waiting import until
from tests.support.workers import work_off, working

pytestmark = pytest.mark.req("JF-7")


class Day:
    """What has happened, in order: jobs that ran, and looks of a duty."""

    def __init__(self, app: App, jobs: int, *, restless: bool = False) -> None:
        """``restless``: each job is followed by another until somebody has looked, or there were a thousand."""
        self.seen: list[str] = []

        @app.job(name="day")
        async def day(number: int) -> None:
            if restless and len(self.seen) < 1_000 and "look" not in self.seen:
                day.enqueue(number + jobs)  # which does not wait: a worker whose jobs do rests meanwhile
            self.seen.append("job")

        app.enqueue_many(day.prepare(number) for number in range(jobs))
        self.app = app

    def work(self) -> list[str]:
        async def look(store: Store) -> int:
            self.seen.append("look")
            return 0

        work_off(self.app, concurrency=2, extra_duties=(MaintenanceTask("look", 60.0, run=look),))
        return self.seen


def test_it_begins_with_the_jobs_that_are_there(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "BACKGROUND_DELAY", 600.0)
    assert Day(app, 20).work() == ["job"] * 20 + ["look"]


def test_what_it_does_besides_is_soon_also_if_it_never_rests(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "BACKGROUND_DELAY", 0.0)
    seen = Day(app, 20, restless=True).work()
    assert (seen.count("look"), seen[-1]) == (1, "job")


def test_what_came_in_before_it_listened_is_not_missed(
    app: App, new_app: NewApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = new_app()
    elsewhere._session.make_ready()
    said: queue.Queue[str] = queue.Queue()
    handles: list[Handle[object]] = []
    listen = elsewhere._store.listen

    @elsewhere.job()
    async def early() -> None: ...

    def too_late(heard: Callable[[str], None], names: Names | None = None) -> Callable[[], None]:
        handles.append(app.enqueue("early"))
        said.get(timeout=20)  # the hint has gone by
        return listen(heard, names)

    hush = listen(said.put)
    said.get(timeout=20)  # from now on everything is told
    monkeypatch.setattr(elsewhere._store, "listen", too_late)
    with working(elsewhere, poll=600.0, promote_every=600.0, sweep_every=600.0):
        until(lambda: len(handles) == 1, "it listens")
        handles[0].result(timeout=20)
    hush()
