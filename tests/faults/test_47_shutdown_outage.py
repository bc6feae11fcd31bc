"""Fault 47: a worker is stopped while its database does not respond: it exits within its grace and a few seconds.

Other workers recover its jobs when the lease has expired. All cases run at once, so that the test waits once.
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
from tests.faults.workload import enqueue_jobs
from tests.support.postgres_server import PostgresServer
from tests.support.proxy import Proxy
from tests.support.waiting import until
from tests.support.worker_processes import Crew, WorkerProcess

pytestmark = pytest.mark.req("SC-13", "CX-15")

GRACE = 0.5
# Pools, threads and processes must end as well, on a busy machine. Without a limit it took more than 90 s.
EXIT_LIMIT = GRACE + LAST_WRITES + CANCEL_AFTER + 30.0


@contextmanager
def locked(path: str) -> Iterator[None]:
    """Hold the write lock on another connection."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        yield
        connection.execute("ROLLBACK")


def start_busy_worker(app: App, crew: Crew, folder: Path, **settings: object) -> WorkerProcess:
    worker = crew.start_one(**settings)
    before = len(effects(folder))
    enqueue_jobs(app, 1, kind="ahold")
    until(lambda: len(effects(folder)) > before, "the worker runs a job")
    return worker


def stop_workers(*workers: WorkerProcess, twice: WorkerProcess) -> None:
    """Send SIGTERM to all workers, and a second one to `twice`."""
    for worker in workers:
        worker.ask_to_stop()
    until(lambda: "Stopping" in twice.said(), "the worker has received the signal")
    twice.ask_to_stop()
    end = time.monotonic() + EXIT_LIMIT
    codes = [worker.wait(max(0.0, end - time.monotonic())) for worker in workers]
    assert codes == [0] * len(workers), "none had to be killed"


def test_workers_stop_while_databases_do_not_respond(postgres_url: str, sqlite_url: str, folder: Path) -> None:
    with ExitStack() as stack:
        proxy = stack.enter_context(Proxy(postgres_url))
        app, local = (stack.enter_context(closing(App(url))) for url in (postgres_url, sqlite_url))
        crew = stack.enter_context(Crew(proxy.url, folder, lease=30.0, grace=GRACE))
        patient = start_busy_worker(app, crew, folder, grace=600.0, concurrency=1)
        several = start_busy_worker(app, crew, folder, options=("--processes", "2"))
        beside = start_busy_worker(local, crew, folder, url=sqlite_url)
        until(lambda: app.health.get().lease_active == 3, "all are there")
        proxy.blackhole()
        with locked(sqlite_url.removeprefix("sqlite:///")):
            stop_workers(patient, several, beside, twice=patient)
        assert all("Database unreachable" in each.said() for each in (patient, several, beside))


@pytest.mark.soak
def test_workers_stop_while_server_is_down(own_server: PostgresServer, own_url: str, folder: Path) -> None:
    with closing(App(own_url)) as app, Crew(own_url, folder, lease=30.0, grace=GRACE) as crew:
        patient = start_busy_worker(app, crew, folder, grace=600.0, concurrency=1)
        idle = crew.start_one()
        several = crew.start_one(options=("--processes", "2"))
        until(lambda: app.health.get().lease_active == 4, "all are there")
        own_server.stop("immediate")
        stop_workers(patient, idle, several, twice=patient)
