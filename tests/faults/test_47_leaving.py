"""Fault 47: a worker is asked to leave while its database does not answer: within its grace and a few seconds it does.

Its jobs are somebody else's when the lease has lapsed. All at once, so that the waiting is done once.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import pytest

from holdfast import App
from holdfast.worker.shutdown import CANCEL_AFTER, LAST_WRITES
from tests.faults.effects import effects
from tests.faults.load import load
from tests.support.postgres_server import PostgresServer
from tests.support.proxy import wire_to
from tests.support.waiting import until
from tests.support.worker_processes import Crew, WorkerProcess

pytestmark = pytest.mark.req("SC-13", "CX-15")

GRACE = 0.5
# Pools, threads and processes have to end as well, on a machine that may have other things to do. Before there was a
# limit it was more than a minute and a half.
LEFT_WITHIN = GRACE + LAST_WRITES + CANCEL_AFTER + 8.0


@contextmanager
def locked(path: str) -> Iterator[None]:
    """Somebody else writes into the file, and does not come to an end."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        yield
        connection.execute("ROLLBACK")


def busy(app: App, crew: Crew, folder: Path, **settings: object) -> WorkerProcess:
    worker = crew.start_one(**settings)
    before = len(effects(folder))
    load(app, 1, kind="ahold")
    until(lambda: len(effects(folder)) > before, "it has its hands full")
    return worker


def leave(*workers: WorkerProcess, twice: WorkerProcess) -> None:
    """Each is asked to, and one of them twice."""
    for worker in workers:
        worker.ask_to_stop()
    until(lambda: "send the signal again" in twice.said(), "it has heard")
    twice.ask_to_stop()
    end = time.monotonic() + LEFT_WITHIN
    codes = [worker.wait(max(0.0, end - time.monotonic())) for worker in workers]
    assert codes == [0] * len(workers), "none had to be killed"


def test_a_database_that_does_not_answer_keeps_nobody(postgres_url: str, sqlite_url: str, folder: Path) -> None:
    with ExitStack() as stack:
        wire = stack.enter_context(wire_to(postgres_url))
        app, local = (stack.enter_context(closing(App(url))) for url in (postgres_url, sqlite_url))
        crew = stack.enter_context(Crew(wire.url(postgres_url), folder, lease=30.0, grace=GRACE))
        patient = busy(app, crew, folder, grace=600.0, concurrency=1)
        several = busy(app, crew, folder, options=("--processes", "2"))
        beside = busy(local, crew, folder, url=sqlite_url)
        until(lambda: app.health.get().lease_active == 3, "all are there")
        wire.hold()
        with locked(sqlite_url.removeprefix("sqlite:///")):
            leave(patient, several, beside, twice=patient)
        assert all("Database unreachable" in each.said() for each in (patient, several, beside))


@pytest.mark.soak
def test_a_server_that_is_gone_keeps_nobody(own_server: PostgresServer, own_url: str, folder: Path) -> None:
    with closing(App(own_url)) as app, Crew(own_url, folder, lease=30.0, grace=GRACE) as crew:
        patient = busy(app, crew, folder, grace=600.0, concurrency=1)
        idle = crew.start_one()
        several = crew.start_one(options=("--processes", "2"))
        until(lambda: app.health.get().lease_active == 4, "all are there")
        own_server.stop("immediate")
        leave(patient, idle, several, twice=patient)
