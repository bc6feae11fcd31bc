"""Faults 4, 5, 8, 17 and 36, of durable jobs: the store goes away while a step is being written, a worker stands still
past its lease in the middle of one, or is asked to leave. What was done is written when it can be, and not done again;
what comes too late is refused.
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
from holdfast.engine.steps import Step
from tests.faults.checker import check
from tests.faults.effects import effects
from tests.faults.load import PATIENT
from tests.faults.picture import take_picture
from tests.faults.test_08_sigstop_zombie import freeze_outside_a_write
from tests.faults.tiny_disk import full
from tests.faults.waiting import all_ended, states
from tests.support.postgres_server import PostgresServer
from tests.support.stores import put, spec
from tests.support.waiting import until
from tests.support.worker_processes import Crew

pytestmark = pytest.mark.req("HF-6", "CX-8", "CX-15", "SC-19")

LARGE = 300_000  # more than a full disk has room for in its log
COLOURS = pytest.mark.parametrize("colour", ["pace", pytest.param("pace_in_a_thread", marks=pytest.mark.soak)])


def enqueue(app: App, kind: str, **payload: int) -> str:
    return put(app._store, spec(kind, retry=PATIENT, payload=payload))[0]


def done(folder: Path) -> Counter[str]:
    """How often each step was run."""
    return Counter(effect.what.split()[0] for effect in effects(folder) if effect.what.startswith("pace-"))


def reached(folder: Path, step: str, times: int = 1) -> None:
    until(lambda: done(folder)[step] == times, f"{step} is under way, for the {times}. time")


def go(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).touch()


def steps(app: App, job: str) -> list[Step]:
    return app._store.run(app._store.steps.list(job, "*"))


def ends_well(app: App, job: str, folder: Path, runs: list[int], attempts: int) -> None:
    """Each step was run so often; whatever it took, each has one record, of the attempt that ran it last."""
    all_ended(app, 1)
    picture = check(app._store.url, [job], folder=folder)
    assert (picture.rows[job].state, picture.rows[job].attempt) == (State.SUCCEEDED, attempts)
    assert [step.name for step in steps(app, job)] == ["pace-0", "pace-1", "pace-2"]
    assert [done(folder)[f"pace-{n}"] for n in range(3)] == runs
    for step in steps(app, job):
        left = [effect for effect in effects(folder) if effect.what.startswith(f"{step.name} ")]
        assert len({effect.what for effect in left}) == 1, "one key"
        assert left[-1].attempt == step.attempt


# -- the store goes away ---------------------------------------------------------------------------------------


@contextmanager
def locked(url: str) -> Iterator[None]:
    """Somebody else is writing, and takes a second over it."""
    with closing(sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None)) as connection:
        connection.execute("begin immediate")
        yield
        time.sleep(1.0)
        connection.execute("rollback")


@contextmanager
def no_room(app: App, disk: Path) -> Iterator[None]:
    """The disk is full; afterwards there is room again, and the jobs that filled it are cancelled."""
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
    """Every connection of the worker is ended, again and again while this is open."""
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


def held_up(
    app: App, crew: Crew, folder: Path, colour: str, away: Callable[[], AbstractContextManager[None]], says: str
) -> None:
    """It is away just when the second step is done and is to be written."""
    worker = crew.start_one(lease=30.0)
    job = enqueue(app, colour)
    go(folder, "go-0")
    reached(folder, "pace-1")
    with away():
        go(folder, "go-1")
        if says:
            until(lambda: says in worker.said(), "the worker says what is wrong")
    go(folder, "go-2")
    ends_well(app, job, folder, [1, 1, 1], attempts=1)
    assert worker.alive


@pytest.mark.slow
@COLOURS
@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
def test_the_file_is_locked_while_a_step_is_written(app: App, crew: Crew, folder: Path, colour: str) -> None:
    held_up(app, crew, folder, colour, lambda: locked(app._store.url), "")


@pytest.mark.slow
@COLOURS
def test_the_disk_is_full_while_a_step_is_written(tiny_disk: Path, folder: Path, colour: str) -> None:
    url = f"sqlite:///{tiny_disk}/jobs.db"
    with closing(App(url, name="tests")) as app, Crew(url, folder) as crew:
        app._store.migrate()
        worker = crew.start_one(lease=30.0)
        job = enqueue(app, colour, size=LARGE)
        go(folder, "go-0")
        reached(folder, "pace-1")
        with no_room(app, tiny_disk):
            go(folder, "go-1")
            until(lambda: "Steps could not be written" in worker.said(), "the worker says what is wrong")
        go(folder, "go-2")
        until(lambda: states(app, [job]) == [State.SUCCEEDED], "it goes on when there is room")
        assert [done(folder)[f"pace-{n}"] for n in range(3)] == [1, 1, 1]
        assert take_picture(url).rows[job].attempt == 1


@pytest.mark.slow
@COLOURS
def test_the_server_is_restarted_while_a_step_is_written(
    own_server: PostgresServer, own_url: str, folder: Path, colour: str
) -> None:
    with closing(App(own_url)) as app, Crew(own_url, folder) as crew:
        held_up(app, crew, folder, colour, lambda: stopped(own_server), "Steps could not be written")


@pytest.mark.slow
@COLOURS
@pytest.mark.parametrize("url", ["postgres"], indirect=True)
def test_connections_are_cut_while_a_step_is_written(app: App, crew: Crew, folder: Path, colour: str) -> None:
    held_up(app, crew, folder, colour, lambda: cut(app._store.url), "")


# -- a worker that stands still --------------------------------------------------------------------------------


@pytest.mark.slow
@COLOURS
@pytest.mark.req("DP-7", "DP-8")
def test_what_a_frozen_worker_writes_of_a_step_is_refused(app: App, crew: Crew, folder: Path, colour: str) -> None:
    zombie = crew.start_one()
    job = enqueue(app, colour)
    go(folder, "go-0")
    reached(folder, "pace-1")
    freeze_outside_a_write(app, zombie)
    other = crew.start_one(lease=2.5)
    reached(folder, "pace-1", 2)
    go(folder, "go-1", "go-2")
    all_ended(app, 1)
    before, remembered = take_picture(app._store.url), steps(app, job)
    zombie.thaw()
    until(
        lambda: "lost" in zombie.said() or "no longer claimed by this worker" in zombie.said(),
        "it is told, and notes it",
    )
    ends_well(app, job, folder, [1, 2, 1], attempts=2)
    after = take_picture(app._store.url)
    assert (after.rows, after.ledgers, steps(app, job)) == (before.rows, before.ledgers, remembered)
    (end,) = [step for step in after.ledgers[job] if step.type == "succeed"]
    assert other.is_author(end.actor)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["asks", "naps"])
@pytest.mark.req("DP-7", "DP-8", "CX-5")
def test_nor_does_it_ask_or_sleep_for_the_job(app: App, crew: Crew, folder: Path, kind: str) -> None:
    zombie = crew.start_one()
    job = enqueue(app, kind)
    until(lambda: len(effects(folder, "begun")) == 1, "it is on its way")
    freeze_outside_a_write(app, zombie)
    crew.start_one(lease=2.5)
    until(lambda: len(effects(folder, "begun")) == 2, "another has the job")
    go(folder, "go")
    if kind == "asks":
        until(app.approvals.list, "it asks")
        app.approvals.approve(app.approvals.list()[0].id, by="ada")
    all_ended(app, 1)
    before, remembered = take_picture(app._store.url), steps(app, job)
    go(folder, "go-first")  # the zombie finds it open when it wakes up
    zombie.thaw()
    until(
        lambda: "lost" in zombie.said() or "no longer claimed by this worker" in zombie.said(),
        "it is told, and notes it",
    )
    zombie.stop()
    check(app._store.url, [job], folder=folder)
    after = take_picture(app._store.url)
    assert (after.rows, after.ledgers, steps(app, job)) == (before.rows, before.ledgers, remembered)
    assert app.approvals.list() == []


# -- a worker that is asked to leave ---------------------------------------------------------------------------


@COLOURS
@pytest.mark.req("SC-13")
def test_a_job_inside_a_step_may_end(app: App, crew: Crew, folder: Path, colour: str) -> None:
    leaving = crew.start_one(lease=30.0, grace=30.0)
    job = enqueue(app, colour)
    go(folder, "go-0")
    reached(folder, "pace-1")
    leaving.ask_to_stop()
    until(lambda: "Stopping" in leaving.said(), "it drains")
    go(folder, "go-1", "go-2")
    assert leaving.wait() == 0
    ends_well(app, job, folder, [1, 1, 1], attempts=1)


@pytest.mark.slow
@COLOURS
@pytest.mark.req("SC-13")
def test_one_that_does_not_end_in_time_is_handed_back_and_repeats_the_step_it_was_in(
    app: App, crew: Crew, folder: Path, colour: str
) -> None:
    leaving = crew.start_one(lease=30.0, grace=0.2)
    job = enqueue(app, colour)
    go(folder, "go-0")
    reached(folder, "pace-1")
    leaving.ask_to_stop()
    assert leaving.wait(10) == 0, "a thread that cannot be stopped does not keep the process"
    assert [step.name for step in steps(app, job)] == ["pace-0"]
    assert take_picture(app._store.url).rows[job].lease is None, "at once, not when the lease has lapsed"
    go(folder, "go-1", "go-2")
    crew.start_one(lease=30.0)
    ends_well(app, job, folder, [1, 2, 1], attempts=2)
    found = app.jobs.get(job)
    assert found.crashes == 0


@pytest.mark.slow
@COLOURS
@pytest.mark.req("SC-13")
@pytest.mark.parametrize("url", ["postgres"], indirect=True)
def test_a_worker_that_waits_for_the_store_leaves_all_the_same(app: App, crew: Crew, folder: Path, colour: str) -> None:
    """Its step is done and is not written yet, as somebody has locked the table: its job is handed back without."""
    leaving = crew.start_one(lease=30.0, grace=0.2)
    job = enqueue(app, colour)
    go(folder, "go-0")
    reached(folder, "pace-1")
    with psycopg.connect(app._store.url) as connection:
        connection.execute("lock table holdfast.step in access exclusive mode")
        go(folder, "go-1")
        until(lambda: _waits_for_the_lock(app._store.url), "it writes")
        leaving.ask_to_stop()
        assert leaving.wait(10) == 0
    go(folder, "go-2")
    crew.start_one(lease=30.0)
    ends_well(app, job, folder, [1, 2, 1], attempts=2)


def _waits_for_the_lock(url: str) -> bool:
    with psycopg.connect(url) as connection:
        return bool(connection.execute("select from pg_locks where not granted").fetchall())


@pytest.mark.slow
@COLOURS
@pytest.mark.req("SC-13")
def test_nor_does_a_full_disk_keep_it(tiny_disk: Path, folder: Path, colour: str) -> None:
    """Its step cannot be written, nor perhaps its job be handed back: then the lease lapses, and it is repeated."""
    url = f"sqlite:///{tiny_disk}/jobs.db"
    with closing(App(url)) as app, Crew(url, folder) as crew:
        app._store.migrate()
        leaving = crew.start_one(grace=0.2)
        job = enqueue(app, colour, size=LARGE)
        go(folder, "go-0")
        reached(folder, "pace-1")
        with no_room(app, tiny_disk):
            go(folder, "go-1")
            until(lambda: "Steps could not be written" in leaving.said(), "it waits")
            leaving.ask_to_stop()
            assert leaving.wait(10) == 0
        go(folder, "go-2")
        crew.start_one()
        until(lambda: states(app, [job]) == [State.SUCCEEDED], "another goes on")
        assert [done(folder)[f"pace-{n}"] for n in range(3)] == [1, 2, 1]
