"""`holdfast jobs log` and `holdfast jobs artifact`."""

from __future__ import annotations

import threading
from contextlib import closing
from pathlib import Path

import pytest

from holdfast import App, SyncContext
from holdfast.features.assembly import Store
from tests.cli.conftest import Holdfast, document, error_of
from tests.support.waiting import until
from tests.support.workers import work_off, working

pytestmark = pytest.mark.req("SC-20", "SC-21")


def test_log_of_an_attempt_is_printed(holdfast: Holdfast, store: Store, tmp_path: Path) -> None:
    with closing(App(store.url, artifacts=tmp_path / "store")) as app:

        @app.job()
        def talks(ctx: SyncContext) -> None:
            ctx.log.info("first")
            ctx.log.info("second")
            ctx.artifact("a.bin", data=b"\x00\xff")

        job = talks.enqueue().id
        assert holdfast("jobs", "log", job).stdout == ""
        work_off(app)
    printed = holdfast("jobs", "log", job[:20]).stdout
    assert [line.split()[-1] for line in printed.splitlines()] == ["first", "second"]
    assert holdfast("jobs", "log", job, "--tail", "40").stdout.endswith("second\n")
    assert document(holdfast("jobs", "log", job, "--attempt", "1", "--json"))["text"] == printed
    assert holdfast("jobs", "log", job, "--follow").stdout == printed, "the attempt has ended"
    assert error_of(holdfast("jobs", "log", job, "--attempt", "2", "--json"))["code"] == "attempt_not_found"
    missing = holdfast("jobs", "artifact", job, "none", "--json")
    assert error_of(missing)["code"] == "artifact_not_found"


def test_artifact_is_written_to_a_file_or_to_stdout(
    holdfast: Holdfast, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_ARTIFACTS", str(tmp_path / "store"))
    with closing(App(store.url)) as app:

        @app.job()
        def makes(ctx: SyncContext) -> None:
            ctx.artifact("a.bin", data=b"\x00\xff")

        job = makes.enqueue().id
        work_off(app)
    assert holdfast("jobs", "artifact", job, "a.bin").stdout_bytes == b"\x00\xff"
    output = holdfast("jobs", "artifact", job, "a.bin", "--output", str(tmp_path / "out"))
    assert (output.exit_code, (tmp_path / "out").read_bytes()) == (0, b"\x00\xff")


def test_log_is_followed_until_attempt_ends(holdfast: Holdfast, store: Store) -> None:
    proceed = threading.Event()
    with closing(App(store.url)) as app:

        @app.job()
        def works(ctx: SyncContext) -> None:
            ctx.log.info("begins")
            proceed.wait(30)
            ctx.log.info("ends")

        job = works.enqueue().id
        with working(app):
            until(lambda: "begins" in app.jobs.log(job).text, "the job runs")
            threading.Timer(0.2, proceed.set).start()
            printed = holdfast("jobs", "log", job, "--follow").stdout
    assert [line.split()[-1] for line in printed.splitlines()] == ["begins", "ends"]
