"""Fault 17: the disk is full: a clear error, no partial write, nothing lost; work continues when there is space."""

from __future__ import annotations

import resource
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from holdfast import App, State
from holdfast.app.internals import session_of
from tests.faults.checker import check
from tests.faults.effects import effects
from tests.faults.tiny_disk import fill, fill_rest
from tests.faults.workload import PATIENT, enqueue_jobs, states, wait_for_all
from tests.support.forkserver import start_call
from tests.support.stores import put, spec
from tests.support.waiting import until
from tests.support.worker_processes import Crew

pytestmark = pytest.mark.req("SC-1", "SC-19", "DP-22", "CX-15")


def is_sound(path: Path) -> bool:
    with closing(sqlite3.connect(path)) as connection:
        return bool(connection.execute("pragma integrity_check").fetchone() == ("ok",))


@pytest.mark.slow
def test_worker_survives_full_disk(tiny_disk: Path, folder: Path) -> None:
    url = f"sqlite:///{tiny_disk}/jobs.db"
    with closing(App(url, name="tests")) as app:
        app.migrate()
        ids = enqueue_jobs(app, 3, kind="hold")
        with Crew(url, folder) as crew:
            (worker,) = crew.start(1, lease=20.0)
            until(lambda: len(effects(folder)) == 3, "the worker runs the jobs")
            accepted, refusal = fill(app)
            assert refusal.code == "disk_full"
            assert "no space" in str(refusal)
            fill_rest(tiny_disk)
            accepted += fill(app, text="")[0]  # the refused write has left space for a small one in the log
            check(url, [*ids, *accepted], ended=False)
            (folder / "go").touch()  # the results cannot be written
            until(lambda: "no space left" in worker.said(), "the worker logs the error")
            assert worker.alive
            assert states(app, ids) == [State.IN_PROGRESS] * 3
            (tiny_disk / "ballast").unlink()
            wait_for_all(app, len(ids) + len(accepted))
            assert worker.alive
        snapshot = check(url, [*ids, *accepted], folder=folder)
        assert [snapshot.rows[job].attempt for job in ids] == [1, 1, 1], "finished results were kept and settled later"
        assert {row.state for row in snapshot.rows.values()} == {State.SUCCEEDED}
        assert put(session_of(app).store, spec())
    assert is_sound(tiny_disk / "jobs.db")


# -- without a mount: a file size limit ------------------------------------------------------------------------


def _enqueue_with_size_limit(url: str, folder: str) -> None:
    """Runs in another process, because the limit holds for all files of a process."""
    with closing(App(url, name="limited")) as app:
        app.migrate()
        put(session_of(app).store, spec("work", retry=PATIENT))
        _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (2_000_000, most))
        accepted, refusal = fill(app)
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
        accepted += put(session_of(app).store, spec("work", retry=PATIENT))
        (Path(folder) / "accepted").write_text("\n".join([refusal.code, *accepted]))


def test_enqueue_fails_cleanly_at_file_size_limit(new_sqlite_url: str, folder: Path) -> None:
    process = start_call(_enqueue_with_size_limit, new_sqlite_url, str(folder))
    process.join(60)
    assert process.exitcode == 0
    code, *accepted = (folder / "accepted").read_text().split()
    assert code in ("disk_full", "store_unavailable")
    with closing(App(new_sqlite_url)) as app:
        first = next(iter({job.id for job in app.jobs.list(limit=1000)} - set(accepted)))
    check(new_sqlite_url, [first, *accepted], ended=False)
    assert is_sound(Path(new_sqlite_url.removeprefix("sqlite:///")))
