"""Fault 56: backends are killed repeatedly under load. A lost connection costs one repeated exchange without a pause;
pauses grow only after several failures in a row. `python -m bench --only storm` measures the claim latency."""

from __future__ import annotations

import asyncio
import logging
import random
import threading
from contextlib import ExitStack, closing
from functools import partial
from types import SimpleNamespace

import psycopg
import pytest

from holdfast import App, State
from holdfast.app.internals import session_of
from holdfast.stores.flow import Flow, Statement, Steps
from holdfast.stores.outage import FIRST_PAUSE, LONGEST_PAUSE, pause_after
from holdfast.worker import recovery
from tests.app.outages import Outage
from tests.faults.checker import check
from tests.support.postgres_server import PostgresServer
from tests.support.waiting import until
from tests.support.workers import working

pytestmark = pytest.mark.req("SC-18", "DP-8")

OTHERS = """
    select pid from pg_stat_activity
     where datname = current_database() and pid <> pg_backend_pid() and application_name = 'holdfast'
"""


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, float]]:
    """The pauses of workers before they retry, with the number of failures in a row."""
    taken: list[tuple[int, float]] = []

    def counted(failures: int) -> float:
        taken.append((failures, 0.0))
        return pause_after(failures)

    async def slept(seconds: float) -> None:
        failures, before = taken.pop() if taken else (0, 0.0)
        taken.append((failures, before + seconds))
        await asyncio.sleep(seconds)

    monkeypatch.setattr(recovery, "pause_after", counted)
    monkeypatch.setattr(recovery, "asyncio", SimpleNamespace(sleep=slept))
    return taken


def test_pauses_start_at_the_second_failure_and_are_random() -> None:
    assert [pause_after(failures) for failures in (0, 1)] == [0.0, 0.0]
    for failures in range(2, 40):
        longest = min(LONGEST_PAUSE, FIRST_PAUSE * 2.0 ** (failures - 2))
        drawn = {pause_after(failures) for _ in range(10)}
        assert len(drawn) == 10
        assert all(longest / 2 <= each <= longest for each in drawn)


@pytest.mark.parametrize("lost", ["request", "response"])
def test_lost_exchange_is_repeated_without_pause(
    url: str, pauses: list[tuple[int, float]], monkeypatch: pytest.MonkeyPatch, lost: str
) -> None:
    with closing(App(url)) as app:
        outage = Outage(app, monkeypatch)

        @app.job()
        async def task(number: int) -> None: ...

        (outage.failing if lost == "request" else outage.unanswered)["leases.exchange"] = 1
        ids = [task.enqueue(number).id for number in range(5)]
        with working(app):
            until(lambda: len(app.jobs.list(state=State.SUCCEEDED)) == 5, "all jobs are done")
        assert outage.hits["leases.exchange"] == 1
    assert pauses == [(1, 0.0)]
    check(url, ids)


def test_pauses_grow_with_consecutive_failures(
    url: str, pauses: list[tuple[int, float]], monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(App(url)) as app:
        outage = Outage(app, monkeypatch)

        @app.job()
        async def task() -> None: ...

        outage.failing["leases.exchange"] = 3  # with two concurrent exchanges, between two and three rounds
        outage.failing["leases.holdings"] = 2
        task.enqueue()
        with working(app):
            until(lambda: app.jobs.list(state=State.SUCCEEDED), "the job is done")
            before = list(pauses)
            outage.failing["leases.exchange"] = 1
            task.enqueue()
            until(lambda: len(app.jobs.list(state=State.SUCCEEDED)) == 2, "the second job is done")
    assert [failures for failures, _ in before] == list(range(1, len(before) + 1))
    assert len(before) >= 4
    assert [pause == 0.0 for _, pause in before] == [True] + [False] * (len(before) - 1)
    assert pauses[len(before) :] == [(1, 0.0)], "a successful exchange resets the count"


def test_read_survives_several_lost_connections_in_a_row(postgres_url: str) -> None:
    attempts = 0

    def steps() -> Steps[int]:
        nonlocal attempts
        attempts += 1
        if attempts <= 3:
            yield Statement("select pg_terminate_backend(pg_backend_pid())")
        [(answer,)] = yield Statement("select 1")
        return int(answer)

    async def aread(app: App) -> int:
        try:
            return await session_of(app).store.arun(Flow(steps, writes=False))
        finally:
            await session_of(app).store.leave_loop()

    with closing(App(postgres_url)) as app:
        assert (session_of(app).store.run(Flow(steps, writes=False)), attempts) == (1, 4)
        attempts = 0
        assert (asyncio.run(aread(app)), attempts) == (1, 4)


@pytest.mark.slow
def test_lost_connections_lose_no_job(
    postgres_url: str, choice: random.Random, caplog: pytest.LogCaptureFixture
) -> None:
    with ExitStack() as stack:
        app, *others = [stack.enter_context(closing(App(postgres_url))) for _ in range(3)]
        for other in others:

            @other.job()
            async def task(number: int) -> None:
                await asyncio.sleep(0)

            stack.enter_context(working(other))
        killer = stack.enter_context(psycopg.connect(postgres_url, autocommit=True))
        ids: list[str] = []
        for _ in range(12):
            ids += [app.enqueue("task", {"number": number}).id for number in range(10)]
            pids = [row[0] for row in killer.execute(OTHERS).fetchall()]
            assert pids
            for pid in choice.sample(pids, min(len(pids), choice.choice((1, 2, 100)))):
                killer.execute("select pg_terminate_backend(%s)", (pid,))
            until(partial(_done, app, len(ids) // 2), "half of the jobs are done")
        until(partial(_done, app, len(ids)), "all jobs are done")
    assert "Database unavailable" not in caplog.text, "a lost connection is not an outage"
    check(postgres_url, ids)


def _done(app: App, count: int) -> bool:
    return len(app.jobs.list(state=State.SUCCEEDED, limit=200)) >= count


@pytest.mark.slow
def test_outage_is_logged_at_its_start_and_end(
    own_server: PostgresServer, own_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    with closing(App(own_url)) as app:
        done = threading.Event()

        @app.job()
        async def task() -> None:
            done.set()

        with working(app, beat=0.6):
            task.enqueue()
            assert done.wait(20)
            caplog.clear()
            own_server.stop("immediate")
            until(lambda: "Database unavailable" in caplog.text, "the outage is logged")
            threading.Event().wait(2.0)  # long enough for every part of a worker to try several times
            own_server.start()
            until(lambda: "Database available again" in caplog.text, "its end is logged")
    lines = [
        record.getMessage()
        for record in caplog.records
        if record.levelno >= logging.INFO and record.name.startswith(("holdfast", "psycopg"))
    ]
    lines = [line for line in lines if not line.startswith(("Lease", "Recovered"))]  # the lease may have expired
    assert len(lines) == 2, lines
    assert lines[0].startswith("Database unavailable, retrying: ")
    assert lines[1].startswith("Database available again after ")
