"""Worker start: waiting jobs run first; maintenance starts when the worker is idle, or soon after."""

from __future__ import annotations

import queue
from collections.abc import Callable

import pytest

from holdfast import App, Handle
from holdfast.app.internals import session_of
from holdfast.features.assembly import Store
from holdfast.stores.listener import Names
from holdfast.worker import worker
from holdfast.worker.maintenance import MaintenanceTask
from tests.app.conftest import NewApp
from tests.support.waiting import until
from tests.support.workers import work_off, working

pytestmark = pytest.mark.req("JF-7")


class Timeline:
    """The order of events: jobs that ran and runs of a maintenance task."""

    def __init__(self, app: App, jobs: int, *, restless: bool = False) -> None:
        """``restless``: each job enqueues another until maintenance has run, or a thousand jobs have."""
        self.seen: list[str] = []

        @app.job(name="day")
        async def day(number: int) -> None:
            if restless and len(self.seen) < 1_000 and "look" not in self.seen:
                day.enqueue(number + jobs)  # does not block: a worker whose jobs wait counts as idle
            self.seen.append("job")

        app.enqueue_many(day.prepare(number) for number in range(jobs))
        self.app = app

    def work(self) -> list[str]:
        async def look(store: Store) -> int:
            self.seen.append("look")
            return 0

        work_off(self.app, concurrency=2, extra_tasks=(MaintenanceTask("look", 60.0, run=look),))
        return self.seen


def test_worker_starts_with_the_waiting_jobs(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "BACKGROUND_DELAY", 600.0)
    assert Timeline(app, 20).work() == ["job"] * 20 + ["look"]


def test_maintenance_starts_soon_on_a_worker_that_is_never_idle(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "BACKGROUND_DELAY", 0.0)
    seen = Timeline(app, 20, restless=True).work()
    assert (seen.count("look"), seen[-1]) == (1, "job")


def test_job_enqueued_before_the_worker_listens_is_not_missed(
    app: App, new_app: NewApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker_app = new_app()
    session_of(worker_app).make_ready()
    notifications: queue.Queue[str] = queue.Queue()
    handles: list[Handle[object]] = []
    listen = session_of(worker_app).store.listen

    @worker_app.job()
    async def early() -> None: ...

    def too_late(
        notified: Callable[[str], None], names: Names | None = None, awaited: Names | None = None
    ) -> Callable[[], None]:
        handles.append(app.enqueue("early"))
        notifications.get(timeout=20)  # the notification has passed
        return listen(notified, names, awaited)

    stop_listening = listen(notifications.put)
    notifications.get(timeout=20)  # it listens
    stop_announcing = listen(notifications.put, lambda: ["default"], lambda: ["default"])
    if session_of(worker_app).store.url.startswith("postgres"):  # SQLite announces every job
        notifications.get(timeout=20)  # from here on they are announced
    monkeypatch.setattr(session_of(worker_app).store, "listen", too_late)
    with working(worker_app, poll=600.0, promote_every=600.0, sweep_every=600.0):
        until(lambda: len(handles) == 1, "the worker listens")
        handles[0].result(timeout=20)
    stop_listening()
    stop_announcing()
