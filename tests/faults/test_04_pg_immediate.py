"""Faults 4 and 5: under load, the server crashes and restarts, or connections are terminated at random.

Workers reconnect automatically. An enqueue either succeeds, and then the job exists, or raises an error, and then the
job may exist.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Generator
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

from holdfast import App, State
from holdfast.app.internals import session_of
from holdfast.errors import StoreError
from tests.faults.checker import check
from tests.faults.effects import effects
from tests.faults.workload import PATIENT, state_counts, wait_for_all
from tests.support.postgres_server import PostgresServer
from tests.support.stores import spec
from tests.support.waiting import until
from tests.support.worker_processes import Crew

pytestmark = pytest.mark.req("CX-15", "SC-19")


class Producer:
    """Enqueues one job after another in a thread, and records which calls succeeded."""

    def __init__(self, app: App, pause: float = 0.005) -> None:
        self._app, self._pause = app, pause
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.accepted: list[str] = []
        self.uncertain: list[str] = []

    def _run(self) -> None:
        while not self._stop.wait(self._pause):
            job = spec("work", payload={"nap": 0.01}, retry=PATIENT)
            try:
                session_of(self._app).store.run(session_of(self._app).store.jobs.enqueue([job], "default"))
            except StoreError:
                self.uncertain.append(job.id)
            else:
                self.accepted.append(job.id)

    def __enter__(self) -> Producer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(60)
        assert not self._thread.is_alive()


def finish(app: App, url: str, producer: Producer, folder: Path) -> None:
    def all_exist() -> bool:
        return sum(state_counts(app).values()) >= len(producer.accepted)

    until(all_exist, "the server answers", 60)
    wait_for_all(app, len(producer.accepted), limit=60)
    snapshot = check(url, producer.accepted, folder=folder, uncertain=producer.uncertain)
    assert {row.state for row in snapshot.rows.values()} == {State.SUCCEEDED}
    print(f"{len(producer.accepted)} accepted, {len(producer.uncertain)} uncertain")


# -- 4: the server crashes -------------------------------------------------------------------------------------


def crash_under_load(server: PostgresServer, url: str, folder: Path, choice: random.Random, crashes: int) -> None:
    with closing(App(url)) as app, Crew(url, folder, lease=2.0) as crew:
        workers = crew.start(2)
        # A worker that finds no server at its start exits; from its first lease on it must reconnect.
        until(lambda: app.health.get().lease_active == 2, "both workers have a lease")
        with Producer(app) as producer:
            for number in range(crashes):
                before = len(effects(folder))
                wanted = before + choice.randint(5, 40)
                until(lambda wanted=wanted: len(effects(folder)) >= wanted, f"jobs run after {number} crashes", 60)  # type: ignore[misc]
                server.stop("immediate")
                server.start()
        finish(app, url, producer, folder)
        assert [worker.alive for worker in workers] == [True, True], crew.said()


@pytest.mark.slow
def test_no_job_is_lost_in_two_server_crashes(
    own_server: PostgresServer, own_url: str, folder: Path, choice: random.Random
) -> None:
    crash_under_load(own_server, own_url, folder, choice, crashes=2)


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_no_job_is_lost_in_twenty_server_crashes(
    own_server: PostgresServer, own_url: str, folder: Path, choice: random.Random
) -> None:
    crash_under_load(own_server, own_url, folder, choice, crashes=20)


# -- 5: connections are terminated -----------------------------------------------------------------------------


def cut_connections(url: str, choice: random.Random) -> Generator[int, None, None]:
    """Terminate a random connection of Holdfast at each step; yields how many there were."""
    with psycopg.connect(url, autocommit=True, application_name="the cutter") as connection:
        while True:
            ours = (
                "select pid from pg_stat_activity where datname = current_database() and application_name = 'holdfast'"
            )
            pids = [row[0] for row in connection.execute(ours)]
            if pids:
                connection.execute("select pg_terminate_backend(%s)", (choice.choice(pids),))
            yield len(pids)


@pytest.mark.parametrize("url", ["postgres"], indirect=True)
@pytest.mark.parametrize("cuts", [20, pytest.param(2_000, marks=[pytest.mark.soak, pytest.mark.timeout(1800)])])
def test_no_job_is_lost_when_connections_are_terminated(
    app: App, crew: Crew, folder: Path, choice: random.Random, cuts: int
) -> None:
    workers = crew.start(2, lease=2.0)
    until(lambda: len(crew.alive) == 2, "both workers run")
    with Producer(app) as producer:
        until(lambda: effects(folder), "the first job runs")
        cutter = cut_connections(session_of(app).store.url, choice)
        done = 0
        while done < cuts:
            before = len(effects(folder))
            done += next(cutter) > 0
            until(lambda before=before: len(effects(folder)) > before, "more jobs run", 60)  # type: ignore[misc]
        cutter.close()
    finish(app, session_of(app).store.url, producer, folder)
    assert [worker.alive for worker in workers] == [True, True], crew.said()
