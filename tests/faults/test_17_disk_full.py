"""Fault 17: the disk is full: a clear error, nothing half-written, nothing lost; and on it goes when there is room
again.
"""

from __future__ import annotations

import resource
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from holdfast import App, State
from tests.faults.checker import check
from tests.faults.effects import effects
from tests.faults.load import PATIENT, load
from tests.faults.tiny_disk import fill, take_the_rest
from tests.faults.waiting import all_ended, states
from tests.support.forkserver import start_call
from tests.support.stores import put, spec
from tests.support.waiting import until
from tests.support.worker_processes import Crew

pytestmark = pytest.mark.req("SC-1", "SC-19", "DP-22", "CX-15")


def sound(path: Path) -> bool:
    with closing(sqlite3.connect(path)) as connection:
        return bool(connection.execute("pragma integrity_check").fetchone() == ("ok",))


@pytest.mark.slow
def test_a_full_disk(tiny_disk: Path, folder: Path) -> None:
    url = f"sqlite:///{tiny_disk}/jobs.db"
    with closing(App(url, name="tests")) as app:
        app._store.migrate()
        ids = load(app, 3, kind="hold")
        with Crew(url, folder) as crew:
            (worker,) = crew.start(1, lease=20.0)
            until(lambda: len(effects(folder)) == 3, "the worker has begun")
            accepted, refusal = fill(app)
            assert refusal.code == "disk_full"
            assert "no space" in str(refusal)
            take_the_rest(tiny_disk)
            accepted += fill(app, text="")[0]  # what was refused has left room in the log for something small
            check(url, [*ids, *accepted], ended=False)
            (folder / "go").touch()  # what it has done now cannot be written down
            until(lambda: "no space left" in worker.said(), "the worker says what is wrong")
            assert worker.alive
            assert states(app, ids) == [State.IN_PROGRESS] * 3
            (tiny_disk / "ballast").unlink()
            all_ended(app, len(ids) + len(accepted))
            assert worker.alive
        picture = check(url, [*ids, *accepted], folder=folder)
        assert [picture.rows[job].attempt for job in ids] == [1, 1, 1], "finished results were kept and settled later"
        assert {row.state for row in picture.rows.values()} == {State.SUCCEEDED}
        assert put(app._store, spec())
    assert sound(tiny_disk / "jobs.db")


# -- everywhere: a file that may not grow ----------------------------------------------------------------------


def _enqueue_under_a_limit(url: str, folder: str) -> None:
    """In a process of its own, since the limit holds for all its files."""
    with closing(App(url, name="limited")) as app:
        app._store.migrate()
        put(app._store, spec("work", retry=PATIENT))
        _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (2_000_000, most))
        accepted, refusal = fill(app)
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
        accepted += put(app._store, spec("work", retry=PATIENT))
        (Path(folder) / "accepted").write_text("\n".join([refusal.code, *accepted]))


def test_a_file_that_may_not_grow(new_sqlite_url: str, folder: Path) -> None:
    process = start_call(_enqueue_under_a_limit, new_sqlite_url, str(folder))
    process.join(60)
    assert process.exitcode == 0
    code, *accepted = (folder / "accepted").read_text().split()
    assert code in ("disk_full", "store_unavailable")
    with closing(App(new_sqlite_url)) as app:
        first = next(iter({job.id for job in app.jobs.list(limit=1000)} - set(accepted)))
    check(new_sqlite_url, [first, *accepted], ended=False)
    assert sound(Path(new_sqlite_url.removeprefix("sqlite:///")))
