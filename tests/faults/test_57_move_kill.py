"""Fault 57: `kill -9` at any moment of `holdfast move`. One side is whole and says so; the move is resumed or given up,
and nothing that was accepted is lost (HF-1)."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from holdfast.engine.job import EVERY_TENANT
from holdfast.errors import HoldfastError
from holdfast.features.assembly import Store, open_store
from holdfast.stores.requests import JobFilter
from tests.support.features import seal, verify
from tests.support.ledger import check_ledger
from tests.support.postgres_databases import TemplateDatabases
from tests.support.stores import put, put_one, spec, work
from tests.support.waiting import until
from tests.support.worker_processes import ROOT

pytestmark = pytest.mark.req("HF-1")

POINTS = [
    "check",
    "noting",
    "prepared",
    "range",
    "copied",
    "applied",
    "followed",
    "refusing",
    "before open",
    "open",
    "left",
]
BEFORE = POINTS[: POINTS.index("open")]
JOBS = 120


@pytest.fixture(params=["sqlite-postgres", "postgres-sqlite", "postgres-postgres"])
def ends(
    request: pytest.FixtureRequest, postgres_databases: TemplateDatabases, tmp_path: Path
) -> Iterator[tuple[str, str]]:
    here, there = request.param.split("-")
    source: str = request.getfixturevalue(f"{here}_url")
    with closing(open_store(source)) as store:
        for _ in range(3):
            put(store, *(spec() for _ in range(JOBS // 3)))
        work(store, want=JOBS // 2)
        seal(store)
    if there == "sqlite":
        yield source, f"sqlite:///{tmp_path}/moved.db"
        return
    with postgres_databases.fresh() as target:
        yield source, target


class Producer:
    """Enqueues jobs into the source, and follows to the target."""

    def __init__(self, url: str) -> None:
        self.accepted: list[str] = []
        self.refused = 0
        self.longest = 0.0
        self._store = open_store(url)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        until(lambda: self.accepted, "a job is accepted")

    def _run(self) -> None:
        while not self._over.is_set():
            begun = time.monotonic()
            try:
                self.accepted.append(put_one(self._store))
                self.longest = max(self.longest, time.monotonic() - begun)
            except HoldfastError as error:
                if error.code not in ("database_moving", "database_moved"):
                    raise
                self.refused += 1
            time.sleep(0.002)

    def stop(self) -> None:
        self._over.set()
        self._thread.join()
        self._store.close()


def start(ends: tuple[str, str], action: str, point: str = "never", number: int = 1) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.faults.move_program", *ends, point, str(number), action]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def finish(ends: tuple[str, str], action: str) -> None:
    process = start(ends, action)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 0, out


def accepts(url: str) -> bool:
    """Whether programs can use the database at once."""
    if url.startswith("sqlite") and not Path(url.removeprefix("sqlite:///")).exists():
        return False
    with closing(open_store(url, follows=False)) as store:
        try:
            store.schema()
            put_one(store)
        except HoldfastError as error:
            if error.code not in ("database_moving", "database_moved", "copy_not_adopted"):
                raise
            return False
        return True


def jobs_of(store: Store) -> set[str]:
    ids: set[str] = set()
    after = None
    while page := store.run(store.jobs.list(JobFilter(tenant=EVERY_TENANT, limit=1000, before=after))):
        ids |= {job.id for job in page}
        after = min(job.id for job in page)
    return ids


def check_whole(url: str, accepted: list[str]) -> None:
    with closing(open_store(url, follows=False)) as store:
        assert set(accepted) <= jobs_of(store)
        put_one(store)
        work(store, want=3)
        check_ledger(store)
        seal(store)
        assert verify(store).flaws == ()


def killed(ends: tuple[str, str], action: str, point: str, number: int = 1) -> None:
    process = start(ends, action, point, number)
    out, _ = process.communicate(timeout=60)
    assert process.returncode in (-signal.SIGKILL, 0), out


@pytest.mark.parametrize("ending", ["resume", "abort"])
@pytest.mark.parametrize("point", POINTS)
@pytest.mark.slow
def test_killed_at_a_point(ends: tuple[str, str], point: str, ending: str, choice: random.Random) -> None:
    check_killed(ends, point, ending, choice.randint(1, 4) if point == "range" else 1)


@pytest.mark.parametrize(("point", "ending"), [("range", "resume"), ("refusing", "abort"), ("open", "resume")])
def test_killed(ends: tuple[str, str], point: str, ending: str) -> None:
    check_killed(ends, point, ending, 2 if point == "range" else 1)


def check_killed(ends: tuple[str, str], point: str, ending: str, number: int) -> None:
    source, target = ends
    producer = Producer(source)
    try:
        killed(ends, "run", point, number)
        open_sides = [url for url in ends if accepts(url)]
        assert len(open_sides) <= 1, "never both"
        assert (source in open_sides) is (point in BEFORE[: BEFORE.index("refusing")])
        assert (target in open_sides) is (point not in BEFORE)
        if ending == "abort" and point not in BEFORE:
            finish(ends, "resume") if point == "open" else None
        else:
            finish(ends, ending)
    finally:
        producer.stop()
    whole = source if ending == "abort" and point in BEFORE else target
    # A target of PostgreSQL that was given up is an empty database again.
    emptied = [target] if ending == "abort" and point in BEFORE and target.startswith("postgres") else []
    assert [url for url in ends if accepts(url)] == [whole, *emptied]
    check_whole(whole, producer.accepted)


@pytest.mark.slow
@pytest.mark.parametrize("point", ["closed", "admitted"])
def test_killed_while_giving_up(ends: tuple[str, str], point: str) -> None:
    source, target = ends
    producer = Producer(source)
    try:
        killed(ends, "run", "refusing")
        killed(ends, "abort", point)
        assert not accepts(target)
        with closing(open_store(source, follows=False)) as store:
            if point == "admitted":
                put_one(store)
        finish(ends, "abort")
    finally:
        producer.stop()
    check_whole(source, producer.accepted)
    assert not accepts(target) or target.startswith("postgres")
    finish(ends, "run")
    check_whole(target, producer.accepted)


@pytest.mark.slow
@pytest.mark.turns(4)
@pytest.mark.parametrize("round", range(10))
def test_killed_at_random(ends: tuple[str, str], round: int, choice: random.Random) -> None:
    """Several movers are killed one after the other, at any moment; the last one resumes or gives up."""
    source, target = ends
    producer = Producer(source)
    try:
        process = start(ends, "run")
        for _ in range(3):
            time.sleep(choice.uniform(0.2, 1.2))
            process.kill()
            process.communicate()
            process = start(ends, "resume")
        process.communicate(timeout=60)
        if process.returncode:  # it had ended before, or had not begun
            with closing(open_store(source, follows=False)) as store:
                begun = store.moved_to() is not None
            if not begun:
                finish(ends, "run")
    finally:
        producer.stop()
    check_whole(target, producer.accepted)
