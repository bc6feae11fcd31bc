"""A database is moved while producers and workers use it: nothing is lost, nothing runs twice to its end, and a
producer waits for a few seconds at most (HF-1)."""

from __future__ import annotations

import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from holdfast.features.assembly import open_store
from holdfast.features.moves.operations import mover
from tests.faults.checker import check
from tests.faults.effects import effects
from tests.support.features import seal, verify
from tests.support.ledger import check_ledger
from tests.support.postgres_databases import TemplateDatabases
from tests.support.waiting import until
from tests.support.worker_processes import ROOT, Crew, environment

pytestmark = pytest.mark.req("HF-1")

DELAY = 30.0
"""Seconds: the bar is 3 on an idle machine. A busy one may stop any process for a while."""


def test_moved_while_programs_run(sqlite_url: str, folder: Path, postgres_databases: TemplateDatabases) -> None:
    with postgres_databases.fresh() as target:
        check_live(sqlite_url, target, folder)


@pytest.mark.slow
def test_moved_to_another_server(postgres_url: str, folder: Path, postgres_databases: TemplateDatabases) -> None:
    with postgres_databases.fresh() as target:
        check_live(postgres_url, target, folder)


@pytest.mark.slow
def test_moved_to_a_file(postgres_url: str, folder: Path, tmp_path: Path) -> None:
    check_live(postgres_url, f"sqlite:///{tmp_path}/moved.db", folder)


def check_live(source: str, target: str, folder: Path) -> None:
    producers = [start_producer(source, folder) for _ in range(2)]
    try:
        with Crew(source, folder, lease=60.0) as crew:
            crew.start(2)
            until(lambda: len(effects(folder)) > 20, "jobs run")
            with mover(source, target, announced=target) as moving:
                result = moving.run()
            moved_at = len(accepted(folder))
            until(lambda: len(accepted(folder)) > moved_at + 50, "producers follow", 120)
            (folder / "stop").touch()
            for producer in producers:
                assert producer.wait(timeout=60) == 0
            jobs = accepted(folder)
            with closing(open_store(target, follows=False)) as store:
                until(lambda: not unfinished(store), "workers follow and run every job", 120)
                assert crew.members[0].alive
        snapshot = check(target, jobs, folder=folder)
        assert {row.state for row in snapshot.rows.values()} == {"succeeded"}
        assert len(effects(folder)) == len(jobs), "each ran once"
        print(
            f"{len(jobs)} jobs, writers refused for {result.refused_seconds:.2f} s,"
            f" longest enqueue {max(jobs.values()):.2f} s"
        )
        assert max(jobs.values()) < DELAY
        with closing(open_store(target, follows=False)) as store:
            check_ledger(store)
            seal(store)
            assert verify(store).flaws == ()
    finally:
        (folder / "stop").touch()
        for producer in producers:
            producer.wait(timeout=60)


def unfinished(store: object) -> int:
    counts = store.run(store.jobs.counts("*"))  # type: ignore[attr-defined]
    return sum(count for state, count in counts.items() if state != "succeeded")


def start_producer(url: str, folder: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "tests.faults.move_producer"]
    return subprocess.Popen(command, cwd=ROOT, env=environment(url, folder))


def accepted(folder: Path) -> dict[str, float]:
    """The jobs that were accepted, and the seconds that each took."""
    path = folder / "accepted"
    lines = path.read_text().splitlines() if path.exists() else []
    return {line.split()[0]: float(line.split()[1]) for line in lines if not line.startswith("refused") and " " in line}
