"""A worker with `idle_after` closes its connections when there is nothing to do, and wakes up for work."""

from __future__ import annotations

import asyncio
import threading
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from urllib.error import HTTPError

import psycopg
import pytest

from holdfast import App
from holdfast.app.internals import make_runner, make_worker, session_of
from holdfast.cli.probes import WorkerProbe, serve_status
from holdfast.errors import InvalidSetting
from holdfast.worker.idle import SleepingWorker
from holdfast.worker.options import WorkerOptions
from tests.support.waiting import until
from tests.support.workers import QUICK

pytestmark = pytest.mark.req("SC-13", "JF-18")

OPTIONS = {**QUICK, "idle_after": 0.3, "wake_every": 3600.0}
CONNECTIONS = "select count(*) - 1 from pg_stat_activity where datname = current_database()"


@contextmanager
def sleeping(app: App) -> Iterator[tuple[SleepingWorker, WorkerProbe]]:
    """The worker and its probe, in a thread of its own."""
    probe, started = WorkerProbe(), threading.Event()
    runners: list[SleepingWorker] = []

    async def serve() -> None:
        runner = make_runner(app, WorkerOptions(**OPTIONS))
        assert isinstance(runner, SleepingWorker)
        runners.append(runner)
        probe.attach(runner)
        started.set()
        await runner.run()
        await app.aclose()

    thread = threading.Thread(target=lambda: asyncio.run(serve()), daemon=True)
    thread.start()
    assert started.wait(20)
    try:
        yield runners[0], probe
    finally:
        runners[0].stop()
        thread.join(20)
    assert not thread.is_alive()


@contextmanager
def counted(url: str) -> Iterator[Callable[[], int]]:
    """The number of other connections to the database. The app that enqueues has to be closed first."""
    with psycopg.connect(url, autocommit=True) as connection:

        def connections() -> int:
            row = connection.execute(CONNECTIONS).fetchone()
            assert row is not None
            return int(row[0])

        yield connections


def app_of(url: str, ran: list[int]) -> App:
    app = App(url)

    @app.job(name="note")
    async def note(number: int) -> None:
        ran.append(number)

    return app


def enqueue(url: str, number: int, delay: float = 0.0) -> None:
    with closing(App(url)) as producer:
        producer.enqueue("note", {"number": number}, delay=delay)


@pytest.mark.slow
def test_worker_sleeps_without_connections_and_wakes_for_due_work(postgres_url: str) -> None:
    ran: list[int] = []
    enqueue(postgres_url, 1)
    enqueue(postgres_url, 2, delay=3.0)
    with (
        counted(postgres_url) as connections,
        closing(app_of(postgres_url, ran)) as app,
        sleeping(app) as (worker, _),
    ):
        until(lambda: ran == [1] and connections() == 0, "the worker sleeps")
        until(lambda: ran == [1, 2], "the worker wakes up for the job that is due")
        until(lambda: connections() == 0, "the worker sleeps again")
        assert (worker.taken, worker.ready()) == (2, (True, "asleep"))


@pytest.mark.slow
def test_sleeping_worker_is_woken_over_http(postgres_url: str) -> None:
    ran: list[int] = []
    with (
        counted(postgres_url) as connections,
        closing(app_of(postgres_url, ran)) as app,
        sleeping(app) as (worker, probe),
        serve_status("127.0.0.1", 0, probe) as server,
    ):
        until(lambda: worker.ready() == (True, "asleep"), "the worker sleeps")
        enqueue(postgres_url, 1)
        until(lambda: connections() == 0, "nobody is connected")
        assert ran == []
        wake(server.server_port)
        until(lambda: ran == [1], "the job has run")
        server.shutdown()


def wake(port: int) -> None:
    with urllib.request.urlopen(
        urllib.request.Request(f"http://127.0.0.1:{port}/wake", method="POST"), timeout=10
    ) as answer:
        assert answer.status == 200


@pytest.mark.slow
def test_sleeping_worker_survives_a_database_that_is_away(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.worker.idle.RETRY_AFTER", 0.1)
    ran: list[int] = []
    with closing(app_of(postgres_url, ran)) as app, sleeping(app) as (worker, _):
        until(lambda: worker.ready() == (True, "asleep"), "the worker sleeps")
        enqueue(postgres_url, 1)
        made: list[bool] = []
        make = worker._make

        def away() -> object:
            made.append(True)
            if len(made) < 3:
                session_of(app).store.outage.failed(error := unreachable())
                raise error
            return make()

        monkeypatch.setattr(worker, "_make", away)
        worker.wake()
        until(lambda: ran == [1], "the job has run")
        assert len(made) == 3


def unreachable() -> Exception:
    with closing(App("postgresql://nobody@127.0.0.1:1/none")) as app:
        try:
            session_of(app).store.schema()
        except Exception as error:
            return error
    raise AssertionError("it was reached")


def test_idle_after_is_refused_where_it_means_nothing(sqlite_url: str) -> None:
    with closing(App(sqlite_url)) as app, pytest.raises(InvalidSetting, match="no connections to close"):
        make_runner(app, WorkerOptions(idle_after=1.0))
    with pytest.raises(InvalidSetting, match="a burst ends by itself"):
        WorkerOptions(idle_after=1.0, burst=True)
    with pytest.raises(InvalidSetting, match="must be positive"):
        WorkerOptions(idle_after=-1.0)


def test_a_worker_that_never_sleeps_has_nothing_to_wake(sqlite_url: str) -> None:
    probe = WorkerProbe()
    with closing(App(sqlite_url)) as app, serve_status("127.0.0.1", 0, probe) as server:
        asyncio.run(attach(probe, app))
        with pytest.raises(HTTPError, match="404"):
            wake(server.server_port)
        server.shutdown()


async def attach(probe: WorkerProbe, app: App) -> None:
    probe.attach(make_worker(app, WorkerOptions()))
