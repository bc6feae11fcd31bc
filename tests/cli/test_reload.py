"""`holdfast worker --reload`: a changed file restarts the worker; a broken one is waited out."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from holdfast.cli.reload import Watch, expected_files, files_of, imported_files
from holdfast.engine.states import State
from holdfast.features.assembly import Store
from tests.cli.processes import started
from tests.support.stores import put_one, state_of
from tests.support.waiting import until

PROGRAM = """
import holdfast
from parts import answer

app = holdfast.App()

@app.job()
async def ask() -> int:
    return answer.NUMBER
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    (folder / "parts").mkdir(parents=True)
    (folder / "parts" / "__init__.py").touch()
    (folder / "parts" / "answer.py").write_text("NUMBER = 1\n")
    (folder / "program.py").write_text(PROGRAM)
    return folder


@contextmanager
def developing(project: Path, store: Store) -> Iterator[tuple[subprocess.Popen[str], list[str]]]:
    """The worker, and the lines of its stderr as they arrive."""
    command = ["worker", "program:app", "--reload", "--poll", "50ms"]
    with started(command, cwd=project, url=store.url) as process:
        messages: list[str] = []

        def listen() -> None:
            assert process.stderr is not None
            messages.extend(iter(process.stderr.readline, ""))

        listener = threading.Thread(target=listen, daemon=True)
        listener.start()
        try:
            yield process, messages
        finally:
            if process.poll() is None:
                process.kill()
            listener.join(10)


def save(path: Path, text: str, at: float) -> None:
    path.write_text(text)
    os.utime(path, ns=(int(at * 1e9), int(at * 1e9)))


def answer(store: Store) -> int | None:
    """The result of a job enqueued now."""
    job_id = put_one(store, "ask")
    until(lambda: state_of(store, job_id) == State.SUCCEEDED, "the job is done")
    result = store.run(store.jobs.result(job_id, "*"))
    return None if result is None else result.value


def contains(messages: list[str], text: str) -> bool:
    return any(text in line for line in list(messages))


@pytest.mark.slow
@pytest.mark.req("JF-7", "SC-13")
def test_changed_handler_is_reloaded_and_broken_one_waited_out(store: Store, project: Path) -> None:
    part = project / "parts" / "answer.py"
    with developing(project, store) as (process, messages):
        assert answer(store) == 1
        part.write_text("NUMBER = 2\n")
        until(lambda: answer(store) == 2, "the change is in force")
        assert contains(messages, "answer.py changed")
        part.write_text("NUMBER = (\n")
        until(
            lambda: contains(messages, "[import_failed]") and contains(messages, "waiting for a file to change"),
            "the error is shown",
        )
        assert contains(messages, "SyntaxError")
        waiting = put_one(store, "ask")
        assert process.poll() is None
        part.write_text("NUMBER = 3\n")
        until(lambda: state_of(store, waiting) == State.SUCCEEDED, "it works again")
        assert answer(store) == 3
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=20) == 0
    assert store.run(store.health.get("*")).lease_active == 0


@pytest.mark.slow
@pytest.mark.req("JF-7")
def test_worker_waits_for_missing_program(sqlite_store: Store, project: Path) -> None:
    program = (project / "program.py").read_text()
    (project / "program.py").unlink()
    with developing(project, sqlite_store) as (process, messages):
        until(lambda: contains(messages, "[module_not_found]"), "the missing module is reported")
        (project / "program.py").write_text(program)
        assert answer(sqlite_store) == 1
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=20) == 0


@pytest.mark.slow
@pytest.mark.req("JF-7")
def test_program_broken_at_start_is_reloaded_when_fixed(sqlite_store: Store, project: Path) -> None:
    part = project / "parts" / "answer.py"
    part.write_text("NUMBER = (\n")
    with developing(project, sqlite_store) as (_, messages):
        until(lambda: contains(messages, "waiting for a file to change"), "the error is shown")
        part.write_text("NUMBER = 4\n")
        assert answer(sqlite_store) == 4


@pytest.mark.slow
@pytest.mark.req("JF-7")
def test_two_changes_within_one_second_are_both_loaded(
    sqlite_store: Store, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the same size too: Python would use the bytecode it compiled for the first."""
    monkeypatch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
    part = project / "parts" / "answer.py"
    with developing(project, sqlite_store):
        assert answer(sqlite_store) == 1
        save(part, "NUMBER = 2\n", at=2_000_000_000.1)
        until(lambda: answer(sqlite_store) == 2, "the first change is in force")
        save(part, "NUMBER = 3\n", at=2_000_000_000.9)
        until(lambda: answer(sqlite_store) == 3, "the second change is in force")


@pytest.mark.req("ARCH")
def test_only_files_of_the_project_are_watched(tmp_path: Path) -> None:
    files = imported_files()
    assert __file__ in files
    assert not any("site-packages" in name or name.endswith("json/__init__.py") for name in files)
    assert not any(name.endswith("holdfast/app/__init__.py") for name in files)
    assert expected_files("shop.jobs:app", tmp_path) == {
        str(tmp_path / "shop" / "jobs.py"),
        str(tmp_path / "shop" / "jobs" / "__init__.py"),
    }


@pytest.mark.req("ARCH")
def test_files_of_an_error_include_those_of_its_causes() -> None:
    def broken() -> None:
        try:
            compile("x = (", "broken_part.py", "exec")
        except SyntaxError as error:
            raise RuntimeError("cannot import") from error

    with pytest.raises(RuntimeError) as caught:
        broken()
    assert files_of(caught.value) == {__file__, "broken_part.py"}


@pytest.mark.req("ARCH")
def test_watch_reports_new_changed_and_removed_files(tmp_path: Path) -> None:
    kept, late = tmp_path / "kept.py", tmp_path / "late.py"
    kept.touch()
    os.utime(kept, ns=(1, 1))
    watch = Watch()
    assert watch.changed([str(kept), str(late)]) == []
    late.touch()
    assert watch.changed([str(kept), str(late)]) == [str(late)]
    assert watch.changed([str(kept), str(late)]) == []
    os.utime(kept, ns=(2, 2))
    assert watch.changed([str(kept)]) == [str(kept)]
    kept.unlink()
    assert watch.changed([str(kept)]) == [str(kept)]
    written = tmp_path / "written.py"
    written.touch()
    os.utime(written, ns=(2**62, 2**62))
    assert watch.changed([str(written)]) == [str(written)], "written after the child started to read"
