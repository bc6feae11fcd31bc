"""Processes killed inside a transaction: either the job and the program's own writes both exist, or neither does."""

from __future__ import annotations

import random
import signal
import subprocess
from functools import partial
from pathlib import Path

import pytest

from holdfast import App, State
from holdfast.app.internals import session_of
from tests.app.notes import connect, notes, prepare_notes
from tests.app.worker_process import log_of, process, worker_process
from tests.support.waiting import until

pytestmark = [pytest.mark.req("HF-3", "CX-15"), pytest.mark.slow]

worker = partial(worker_process, "tests.app.killable_transactions", lease=1.0, concurrency=2)
rescuer = partial(worker, lease=30.0)  # its own lease must not expire, however busy the machine is

# A program that writes and enqueues in one transaction, and is killed before or after it commits.
PRODUCER = """
import os, signal, sqlite3, psycopg
from holdfast.app.internals import session_of
from tests.app.killable_transactions import CRASH, app, die, pay

url = session_of(app).store.url
session_of(app).make_ready()
connection = sqlite3.connect(url.removeprefix("sqlite:///")) if url.startswith("sqlite") else psycopg.connect(url)
connection.execute("insert into note values ('produced')")
pay.using(connection=connection).enqueue(1)
if CRASH == "before commit":
    die()
connection.commit()
die()
"""


@pytest.fixture(autouse=True)
def table(app: App, url: str) -> None:
    session_of(app).make_ready()
    prepare_notes(url)


@pytest.mark.parametrize("crash", ["before commit", "after commit"])
def test_killed_producer_leaves_both_job_and_writes_or_neither(app: App, url: str, tmp_path: Path, crash: str) -> None:
    with process(PRODUCER, url=url, folder=tmp_path, extra={"HOLDFAST_TEST_CRASH": crash}) as producer:
        assert producer.wait(timeout=30) == -signal.SIGKILL, log_of(tmp_path)
    committed = crash == "after commit"
    assert [job.state for job in app.jobs.list()] == [State.QUEUED] * committed
    assert notes(url) == ["produced"] * committed


@pytest.mark.parametrize("kind", ["pay", "apay"])
@pytest.mark.parametrize("crash", ["in the block", "before commit", "after commit"])
def test_killed_handler_leaves_both_success_and_writes_or_neither(
    app: App, url: str, tmp_path: Path, crash: str, kind: str
) -> None:
    handle = app.enqueue(kind, {"number": 7})
    with worker(url, tmp_path, HOLDFAST_TEST_CRASH=crash) as victim:
        assert victim.wait(timeout=30) == -signal.SIGKILL, log_of(tmp_path)
    committed = crash == "after commit"
    # The server may take a moment to notice that its client is gone.
    until(lambda: not open_transactions(url), "the open transactions are rolled back")
    assert (handle.state(), notes(url)) == ((State.SUCCEEDED, ["7"]) if committed else (State.IN_PROGRESS, []))
    with rescuer(url, tmp_path, HOLDFAST_TEST_CRASH=crash):
        assert handle.result(timeout=30) == 7
    assert (notes(url), handle.get().attempt) == (["7"], 1 if committed else 2)
    assert [event.type for event in handle.history()].count("succeed") == 1


def open_transactions(url: str) -> bool:
    if url.startswith("sqlite"):
        return False
    with connect(url) as connection:
        query = "select 1 from pg_stat_activity where datname = current_database() and application_name = %s"
        return bool(connection.execute(query, ("holdfast handler",)).fetchall())


def test_jobs_killed_at_random_moments_write_exactly_once(
    app: App, url: str, tmp_path: Path, choice: random.Random
) -> None:
    with connect(url) as connection:  # without the unique constraint a second write would be visible
        connection.execute("drop table note")
        connection.execute("create table note (says text)")
    handles = [app.enqueue(choice.choice(["pay", "apay"]), {"number": n}) for n in range(120)]

    def finished() -> int:
        return sum(handle.state() == State.SUCCEEDED for handle in handles)

    for _ in range(6):
        already = finished()
        with worker(url, tmp_path) as victim:
            until(lambda already=already: finished() > already or finished() == 120, "the worker finishes jobs")  # type: ignore[misc]
            try:
                victim.wait(timeout=choice.uniform(0.0, 0.15))
            except subprocess.TimeoutExpired:
                victim.kill()
                victim.wait(timeout=10)
    with rescuer(url, tmp_path):
        until(lambda: finished() == 120, "every job is finished", limit=60)
    assert sorted(map(int, notes(url))) == list(range(120))
    for handle in handles:
        assert [event.type for event in handle.history()].count("succeed") == 1
        assert handle.result(timeout=1) >= 0
