"""Fault 19: four processes write one SQLite file as fast as they can, and some are killed meanwhile.

No process gets a "database is locked" error, and every accepted job exists.
"""

from __future__ import annotations

import os
import random
import time
from contextlib import closing
from multiprocessing.context import ForkServerProcess
from pathlib import Path

import pytest

from holdfast import App, State
from holdfast.app.internals import session_of
from tests.faults.checker import check
from tests.faults.crash_points import start_worker
from tests.faults.workload import PATIENT, wait_for_all
from tests.support.forkserver import start_call
from tests.support.stores import put, spec
from tests.support.waiting import until

pytestmark = [pytest.mark.req("SC-1", "SC-19", "CX-15"), pytest.mark.parametrize("url", ["sqlite"], indirect=True)]

WRITERS = 4
ID_LENGTH = 36


def _append(path: Path, line: str) -> None:
    handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(handle, f"\n{line}\n".encode())
    os.fsync(handle)
    os.close(handle)


def _produce(url: str, folder: str) -> None:
    """Enqueue until killed or stopped; every id is recorded before and after its enqueue."""
    marks = Path(folder)
    with closing(App(url, name="producer")) as app:
        app.migrate()
        while not (marks / "stop").exists():
            job = spec("awork", payload={"number": 1}, retry=PATIENT)
            _append(marks / "offered", job.id)
            try:
                put(session_of(app).store, job)
            except Exception as error:
                _append(marks / "errors", repr(error))
                raise
            _append(marks / "accepted", job.id)


def read(path: Path) -> list[str]:
    """The ids in a file. The kill of a writer can cut its last line short; the next one begins on a line of its own."""
    return [word for word in path.read_text().split() if len(word) == ID_LENGTH] if path.exists() else []


def kill_writers(app: App, folder: Path, choice: random.Random, *, kills: int, pause: float) -> None:
    url = session_of(app).store.url

    def writer() -> ForkServerProcess:
        return start_call(_produce, url, str(folder))

    writers = [writer() for _ in range(WRITERS)]
    worker = start_worker(url, folder, burst=False)
    try:
        until(lambda: len(read(folder / "accepted")) > 20, "the writers run")
        for _ in range(kills):
            time.sleep(choice.uniform(0.0, pause))
            victim = choice.choice(writers)
            victim.kill()
            victim.join(10)
            writers[writers.index(victim)] = writer()
            if choice.random() < 0.3:
                worker.kill()
                worker.join(10)
                worker = start_worker(url, folder, burst=False)
        (folder / "stop").touch()
        for each in writers:
            each.join(20)
        accepted, offered = read(folder / "accepted"), read(folder / "offered")
        wait_for_all(app, len(accepted))
    finally:
        for each in (*writers, worker):
            each.kill()
            each.join(10)
    assert not (folder / "errors").exists(), (folder / "errors").read_text()
    assert "locked" not in (folder / "worker.log").read_text()
    snapshot = check(url, accepted, folder=folder, uncertain=set(offered) - set(accepted))
    assert {row.state for row in snapshot.rows.values()} == {State.SUCCEEDED}
    print(f"{len(accepted)} jobs accepted, {len(offered) - len(accepted)} writers killed in between")


def test_killed_writers_lose_no_job(app: App, folder: Path, choice: random.Random) -> None:
    kill_writers(app, folder, choice, kills=12, pause=0.2)


@pytest.mark.soak
@pytest.mark.timeout(1200)
def test_killed_writers_lose_no_job_for_long(app: App, folder: Path, choice: random.Random) -> None:
    kill_writers(app, folder, choice, kills=300, pause=0.5)
