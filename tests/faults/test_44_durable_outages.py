"""Faults 4, 5, 8, 17 and 36 for durable jobs: the database is unavailable when a step is stored, a worker is frozen
past its lease within a step, or is stopped. Results are stored later and steps are not repeated; late results are
refused.
"""

from __future__ import annotations

import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path

import psycopg
import pytest

from holdfast import App, State
from holdfast.app.internals import session_of
from holdfast.engine.steps import Step
from tests.faults.checker import check
from tests.faults.effects import effects
from tests.faults.snapshot import take_snapshot
from tests.faults.test_08_sigstop_zombie import freeze_outside_a_write
from tests.faults.tiny_disk import full
from tests.faults.workload import PATIENT, states, wait_for_all
from tests.support.postgres_server import PostgresServer
from tests.support.stores import put, spec
from tests.support.waiting import until
from tests.support.worker_processes import Crew

pytestmark = pytest.mark.req("HF-6", "CX-8", "CX-15", "SC-19")

LARGE = 300_000  # does not fit on a full disk
HANDLERS = pytest.mark.parametrize(
    "kind", ["three_steps", pytest.param("three_steps_in_thread", marks=pytest.mark.soak)]
)


def enqueue(app: App, kind: str, **payload: int) -> str:
    return put(session_of(app).store, spec(kind, retry=PATIENT, payload=payload))[0]


def done(folder: Path) -> Counter[str]:
    """Count the runs of each step."""
    return Counter(effect.what.split()[0] for effect in effects(folder) if effect.what.startswith("step-"))


def wait_for_step(folder: Path, step: str, times: int = 1) -> None:
    until(lambda: done(folder)[step] == times, f"{step} runs, number {times}")


def release(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).touch()


def steps(app: App, job: str) -> list[Step]:
    return session_of(app).store.run(session_of(app).store.steps.list(job, "*"))


def check_success(app: App, job: str, folder: Path, runs: list[int], attempts: int) -> None:
    """Wait for the job, and check the runs of each step and its record, which has the last attempt that ran it."""
    wait_for_all(app, 1)
    snapshot = check(session_of(app).store.url, [job], folder=folder)
    assert (snapshot.rows[job].state, snapshot.rows[job].attempt) == (State.SUCCEEDED, attempts)
    assert [step.name for step in steps(app, job)] == ["step-0", "step-1", "step-2"]
    assert [done(folder)[f"step-{n}"] for n in range(3)] == runs
    for step in steps(app, job):
        own = [effect for effect in effects(folder) if effect.what.startswith(f"{step.name} ")]
        assert len({effect.what for effect in own}) == 1, "one key"
        assert own[-1].attempt == step.attempt


# -- the database is unavailable -------------------------------------------------------------------------------


@contextmanager
def locked(url: str) -> Iterator[None]:
    """Hold the write lock on another connection for one more second."""
    with closing(sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None)) as connection:
        connection.execute("begin immediate")
        yield
        time.sleep(1.0)
        connection.execute("rollback")


@contextmanager
def no_room(app: App, disk: Path) -> Iterator[None]:
    """Fill the disk; afterwards free it and cancel the jobs that filled it."""
    with full(app, disk) as others:
        yield
    (disk / "ballast").unlink()
    app.jobs.cancel(*others)


@contextmanager
def stopped(server: PostgresServer) -> Iterator[None]:
    server.stop("immediate")
    try:
        yield
    finally:
        server.start()


@contextmanager
def cut(url: str) -> Iterator[None]:
    """Terminate every connection of the worker, at the start and repeatedly at the end of the block."""
    with psycopg.connect(url, autocommit=True, application_name="the cutter") as connection:
        kill = (
            "select count(pg_terminate_backend(pid)) from pg_stat_activity where datname = current_database()"
            " and pid <> pg_backend_pid() and application_name <> 'the tests'"
        )
        for _ in range(3):
            connection.execute(kill)
        yield
        for _ in range(20):
            connection.execute(kill)


def interrupt_second_step(
    app: App, crew: Crew, folder: Path, kind: str, outage: Callable[[], AbstractContextManager[None]], message: str
) -> None:
    """Start the outage when the second step has run and is to be stored."""
    worker = crew.start_one(lease=30.0)
    job = enqueue(app, kind)
    release(folder, "go-0")
    wait_for_step(folder, "step-1")
    with outage():
        release(folder, "go-1")
        if message:
            until(lambda: message in worker.said(), "the worker logs the outage")
    release(folder, "go-2")
    check_success(app, job, folder, [1, 1, 1], attempts=1)
    assert worker.alive


@pytest.mark.slow
@HANDLERS
@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
def test_step_is_stored_after_file_lock(app: App, crew: Crew, folder: Path, kind: str) -> None:
    interrupt_second_step(app, crew, folder, kind, lambda: locked(session_of(app).store.url), "")


@pytest.mark.slow
@HANDLERS
def test_step_is_stored_after_full_disk(tiny_disk: Path, folder: Path, kind: str) -> None:
    url = f"sqlite:///{tiny_disk}/jobs.db"
    with closing(App(url, name="tests")) as app, Crew(url, folder) as crew:
        app.migrate()
        worker = crew.start_one(lease=30.0)
        job = enqueue(app, kind, size=LARGE)
        release(folder, "go-0")
        wait_for_step(folder, "step-1")
        with no_room(app, tiny_disk):
            release(folder, "go-1")
            until(lambda: "Steps could not be written" in worker.said(), "the worker logs the error")
        release(folder, "go-2")
        until(lambda: states(app, [job]) == [State.SUCCEEDED], "the job succeeds when there is space")
        assert [done(folder)[f"step-{n}"] for n in range(3)] == [1, 1, 1]
        assert take_snapshot(url).rows[job].attempt == 1


@pytest.mark.slow
@HANDLERS
def test_step_is_stored_after_server_restart(own_server: PostgresServer, own_url: str, folder: Path, kind: str) -> None:
    with closing(App(own_url)) as app, Crew(own_url, folder) as crew:
        interrupt_second_step(app, crew, folder, kind, lambda: stopped(own_server), "Steps could not be written")


@pytest.mark.slow
@HANDLERS
@pytest.mark.parametrize("url", ["postgres"], indirect=True)
def test_step_is_stored_after_lost_connections(app: App, crew: Crew, folder: Path, kind: str) -> None:
    interrupt_second_step(app, crew, folder, kind, lambda: cut(session_of(app).store.url), "")


# -- a frozen worker -------------------------------------------------------------------------------------------


@pytest.mark.slow
@HANDLERS
@pytest.mark.req("DP-7", "DP-8")
def test_late_step_of_frozen_worker_is_refused(app: App, crew: Crew, folder: Path, kind: str) -> None:
    zombie = crew.start_one()
    job = enqueue(app, kind)
    release(folder, "go-0")
    wait_for_step(folder, "step-1")
    freeze_outside_a_write(app, zombie)
    other = crew.start_one(lease=2.5)
    wait_for_step(folder, "step-1", 2)
    release(folder, "go-1", "go-2")
    wait_for_all(app, 1)
    before, stored = take_snapshot(session_of(app).store.url), steps(app, job)
    zombie.thaw()
    until(
        lambda: "lost" in zombie.said() or "no longer claimed by this worker" in zombie.said(),
        "the frozen worker logs that it lost its lease",
    )
    check_success(app, job, folder, [1, 2, 1], attempts=2)
    after = take_snapshot(session_of(app).store.url)
    assert (after.rows, after.ledgers, steps(app, job)) == (before.rows, before.ledgers, stored)
    (end,) = [event for event in after.ledgers[job] if event.type == "succeed"]
    assert other.is_author(end.actor)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["asks", "sleeps"])
@pytest.mark.req("DP-7", "DP-8", "CX-5")
def test_late_approval_or_sleep_of_frozen_worker_is_refused(app: App, crew: Crew, folder: Path, kind: str) -> None:
    zombie = crew.start_one()
    job = enqueue(app, kind)
    until(lambda: len(effects(folder, "begun")) == 1, "the job runs")
    freeze_outside_a_write(app, zombie)
    crew.start_one(lease=2.5)
    until(lambda: len(effects(folder, "begun")) == 2, "another worker runs the job")
    release(folder, "go")
    if kind == "asks":
        until(app.approvals.list, "the job waits for approval")
        app.approvals.approve(app.approvals.list()[0].id, by="ada")
    wait_for_all(app, 1)
    before, stored = take_snapshot(session_of(app).store.url), steps(app, job)
    release(folder, "go-first")  # the frozen handler continues when it is thawed
    zombie.thaw()
    until(
        lambda: "lost" in zombie.said() or "no longer claimed by this worker" in zombie.said(),
        "the frozen worker logs that it lost its lease",
    )
    zombie.stop()
    check(session_of(app).store.url, [job], folder=folder)
    after = take_snapshot(session_of(app).store.url)
    assert (after.rows, after.ledgers, steps(app, job)) == (before.rows, before.ledgers, stored)
    assert app.approvals.list() == []


# -- a worker that is stopped ----------------------------------------------------------------------------------


@HANDLERS
@pytest.mark.req("SC-13")
def test_job_inside_step_may_end_during_grace(app: App, crew: Crew, folder: Path, kind: str) -> None:
    leaving = crew.start_one(lease=30.0, grace=30.0)
    job = enqueue(app, kind)
    release(folder, "go-0")
    wait_for_step(folder, "step-1")
    leaving.ask_to_stop()
    until(lambda: "Stopping" in leaving.said(), "the worker drains")
    release(folder, "go-1", "go-2")
    assert leaving.wait() == 0
    check_success(app, job, folder, [1, 1, 1], attempts=1)


@pytest.mark.slow
@HANDLERS
@pytest.mark.req("SC-13")
def test_job_that_exceeds_grace_repeats_its_step(app: App, crew: Crew, folder: Path, kind: str) -> None:
    leaving = crew.start_one(lease=30.0, grace=0.2)
    job = enqueue(app, kind)
    release(folder, "go-0")
    wait_for_step(folder, "step-1")
    leaving.ask_to_stop()
    assert leaving.wait(10) == 0, "a thread that cannot be stopped does not delay the exit"
    assert [step.name for step in steps(app, job)] == ["step-0"]
    assert take_snapshot(session_of(app).store.url).rows[job].lease is None, "at once, not when the lease has expired"
    release(folder, "go-1", "go-2")
    crew.start_one(lease=30.0)
    check_success(app, job, folder, [1, 2, 1], attempts=2)
    assert app.jobs.get(job).crashes == 0


@pytest.mark.slow
@HANDLERS
@pytest.mark.req("SC-13")
@pytest.mark.parametrize("url", ["postgres"], indirect=True)
def test_worker_stops_while_step_waits_for_table_lock(app: App, crew: Crew, folder: Path, kind: str) -> None:
    """The step has run but cannot be stored because the table is locked: its job is returned without the step."""
    leaving = crew.start_one(lease=30.0, grace=0.2)
    job = enqueue(app, kind)
    release(folder, "go-0")
    wait_for_step(folder, "step-1")
    with psycopg.connect(session_of(app).store.url) as connection:
        connection.execute("lock table holdfast.step in access exclusive mode")
        release(folder, "go-1")
        until(lambda: _waits_for_the_lock(session_of(app).store.url), "the worker waits for the lock")
        leaving.ask_to_stop()
        assert leaving.wait(10) == 0
    release(folder, "go-2")
    crew.start_one(lease=30.0)
    check_success(app, job, folder, [1, 2, 1], attempts=2)


def _waits_for_the_lock(url: str) -> bool:
    with psycopg.connect(url) as connection:
        return bool(connection.execute("select from pg_locks where not granted").fetchall())


@pytest.mark.slow
@HANDLERS
@pytest.mark.req("SC-13")
def test_worker_stops_while_disk_is_full(tiny_disk: Path, folder: Path, kind: str) -> None:
    """The step cannot be stored, and perhaps the job not returned: then the lease expires, and the step is repeated."""
    url = f"sqlite:///{tiny_disk}/jobs.db"
    with closing(App(url)) as app, Crew(url, folder) as crew:
        app.migrate()
        leaving = crew.start_one(grace=0.2)
        job = enqueue(app, kind, size=LARGE)
        release(folder, "go-0")
        wait_for_step(folder, "step-1")
        with no_room(app, tiny_disk):
            release(folder, "go-1")
            until(lambda: "Steps could not be written" in leaving.said(), "the worker logs the error")
            leaving.ask_to_stop()
            assert leaving.wait(10) == 0
        release(folder, "go-2")
        crew.start_one()
        until(lambda: states(app, [job]) == [State.SUCCEEDED], "another worker finishes the job")
        assert [done(folder)[f"step-{n}"] for n in range(3)] == [1, 2, 1]
