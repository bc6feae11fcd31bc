"""Fault 56: backends are killed again and again while jobs flow. A lost connection costs one repeated exchange, no
pause; the server is asked less and less often only when it fails several times in a row. How long claims take under
such a storm is measured by `python -m bench --only storm`."""

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
    """The pauses of a worker after failures: the number of failures in a row, and the seconds it slept."""
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


def test_pauses_begin_with_the_second_failure_and_are_spread() -> None:
    assert [pause_after(failures) for failures in (0, 1)] == [0.0, 0.0]
    for failures in range(2, 40):
        longest = min(LONGEST_PAUSE, FIRST_PAUSE * 2.0 ** (failures - 2))
        drawn = {pause_after(failures) for _ in range(10)}
        assert len(drawn) == 10
        assert all(longest / 2 <= each <= longest for each in drawn)


@pytest.mark.parametrize("lost", ["the question", "the answer"])
def test_one_lost_exchange_is_repeated_without_a_pause(
    url: str, pauses: list[tuple[int, float]], monkeypatch: pytest.MonkeyPatch, lost: str
) -> None:
    with closing(App(url)) as app:
        outage = Outage(app, monkeypatch)

        @app.job()
        async def errand(number: int) -> None: ...

        (outage.failing if lost == "the question" else outage.unanswered)["leases.exchange"] = 1
        ids = [errand.enqueue(number).id for number in range(5)]
        with working(app):
            until(lambda: len(app.jobs.list(state=State.SUCCEEDED)) == 5, "all are done")
        assert outage.hits["leases.exchange"] == 1
    assert pauses == [(1, 0.0)]
    check(url, ids)


def test_failures_in_a_row_are_followed_by_longer_and_longer_pauses(
    url: str, pauses: list[tuple[int, float]], monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(App(url)) as app:
        outage = Outage(app, monkeypatch)

        @app.job()
        async def errand() -> None: ...

        outage.failing["leases.exchange"] = 3  # with two exchanges at a time, between two and three rounds
        outage.failing["leases.holdings"] = 2
        errand.enqueue()
        with working(app):
            until(lambda: app.jobs.list(state=State.SUCCEEDED), "it is done")
            before = list(pauses)
            outage.failing["leases.exchange"] = 1
            errand.enqueue()
            until(lambda: len(app.jobs.list(state=State.SUCCEEDED)) == 2, "so is the next")
    assert [failures for failures, _ in before] == list(range(1, len(before) + 1))
    assert len(before) >= 4
    assert [pause == 0.0 for _, pause in before] == [True] + [False] * (len(before) - 1)
    assert pauses[len(before) :] == [(1, 0.0)], "an exchange that came through begins the count anew"


@pytest.mark.slow
def test_a_storm_of_lost_connections_loses_no_job(
    postgres_url: str, choice: random.Random, caplog: pytest.LogCaptureFixture
) -> None:
    with ExitStack() as stack:
        app, *others = [stack.enter_context(closing(App(postgres_url))) for _ in range(3)]
        for other in others:

            @other.job()
            async def errand(number: int) -> None:
                await asyncio.sleep(0)

            stack.enter_context(working(other))
        killer = stack.enter_context(psycopg.connect(postgres_url, autocommit=True))
        ids: list[str] = []
        for _ in range(12):
            ids += [app.enqueue("errand", {"number": number}).id for number in range(10)]
            pids = [row[0] for row in killer.execute(OTHERS).fetchall()]
            assert pids
            for pid in choice.sample(pids, min(len(pids), choice.choice((1, 2, 100)))):
                killer.execute("select pg_terminate_backend(%s)", (pid,))
            until(partial(_done, app, len(ids) // 2), "jobs flow on")
        until(partial(_done, app, len(ids)), "all are done")
    assert "Database unavailable" not in caplog.text, "no loss was an outage"
    check(postgres_url, ids)


def _done(app: App, count: int) -> bool:
    return len(app.jobs.list(state=State.SUCCEEDED, limit=200)) >= count


@pytest.mark.slow
def test_an_outage_is_logged_when_it_begins_and_when_it_is_over(
    own_server: PostgresServer, own_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    with closing(App(own_url)) as app:
        done = threading.Event()

        @app.job()
        async def errand() -> None:
            done.set()

        with working(app, beat=0.6):
            errand.enqueue()
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
    # The lease may have expired meanwhile.
    lines = [line for line in lines if not line.startswith(("Lease", "Recovered"))]
    assert len(lines) == 2, lines
    assert lines[0].startswith("Database unavailable, retrying: ")
    assert lines[1].startswith("Database available again after ")
