"""Fault 18: the n-th read, write or sync of a SQLite file fails, for every n.

It fails once, or half of a write arrives first, or the disk is gone from then on, until the file is opened again. A
call fails with an error code or has happened: no accepted job is lost, and the file is sound.
"""

from __future__ import annotations

import random
import shutil
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from holdfast.engine.job import Sweep
from holdfast.errors import StoreUnavailable
from holdfast.features.assembly import Store, open_store
from tests.faults.checker import check
from tests.faults.every_point import every
from tests.faults.sqlite_faults import REACHABLE
from tests.faults.sqlite_io import OPERATIONS, Lasting, Operation, watched_disk
from tests.faults.test_17_disk_full import is_sound
from tests.faults.workload import PATIENT
from tests.support.stores import claim, forward, open_lease, settle, spec

pytestmark = [
    pytest.mark.req("SC-1", "SC-19", "DP-22", "CX-15"),
    pytest.mark.skipif(not REACHABLE, reason="this Python has SQLite built in"),
]

Point = tuple[int, Lasting, Operation]
FORMS: dict[Operation, tuple[Lasting, ...]] = {
    "read": ("once", "from then on"),
    "write": ("once", "torn", "from then on"),
    "sync": ("once", "from then on"),
}


class Programs:
    """Programs that enqueue and run jobs on one file, and what they were told."""

    def __init__(self, template: Path, path: Path) -> None:
        self.path, self.url = path, f"sqlite:///{shutil.copy(template, path)}"
        self.accepted: set[str] = set()
        self.uncertain: set[str] = set()
        self.errors: list[StoreUnavailable] = []

    def run(self, store: Store) -> None:
        for _ in range(2):
            self.enqueue(store, 1)
            self.enqueue(store, 6, payload={"text": "x" * 3000})
            with self.told():
                if claims := claim(store, open_lease(store), 4):
                    assert settle(store, claims) == []
            with self.told():
                store.run(store.leases.recover())

    def enqueue(self, store: Store, count: int, **fields: object) -> None:
        jobs = [spec("work", retry=PATIENT, **fields) for _ in range(count)]
        self.uncertain |= {job.id for job in jobs}
        with self.told():
            store.run(store.jobs.enqueue(jobs, "default"))
            self.accepted |= {job.id for job in jobs}

    @contextmanager
    def told(self) -> Iterator[None]:
        try:
            yield
        except StoreUnavailable as error:
            self.errors.append(error)

    def finish(self) -> None:
        """Open the file again: leases of lost workers expire, and what is left is done."""
        assert is_sound(self.path)
        with closing(open_store(self.url)) as store:
            forward(store, 60)
            while store.run(store.leases.recover()) != Sweep(0, 0, 0):
                pass
            forward(store, 3600)  # retries of attempts that were counted as crashes
            store.run(store.leases.promote())
            lease = open_lease(store)
            while claims := claim(store, lease, 100):
                assert settle(store, claims) == []
        check(self.url, self.accepted, uncertain=self.uncertain)
        assert is_sound(self.path)


def operations(template: Path, folder: Path) -> Counter[Operation]:
    """How many operations a run without a fault takes."""
    programs = Programs(template, folder / "sound.db")
    with watched_disk() as disk:
        with closing(open_store(programs.url)) as store:
            programs.run(store)
        counted = disk.operations.copy()
    assert not programs.errors
    programs.finish()
    return counted


def broken(template: Path, folder: Path, point: Point) -> None:
    number, lasting, operation = point
    programs = Programs(template, folder / f"{operation}-{number}-{lasting}.db".replace(" ", "-"))
    with watched_disk() as disk:
        disk.fail(operation, number, lasting)
        with closing(open_store(programs.url)) as store:
            programs.run(store)
        assert disk.failed, "the fault was met"
    assert {error.code for error in programs.errors} <= {"store_unavailable", "disk_full"}
    programs.finish()
    for path in folder.glob(f"{programs.path.name}*"):
        path.unlink()


def points(counted: Counter[Operation]) -> list[Point]:
    return [
        (number, lasting, operation)
        for operation in OPERATIONS
        for lasting in FORMS[operation]
        for number in range(1, counted[operation] + 1)
    ]


def test_nothing_is_lost_when_some_operation_fails(
    sqlite_template: Path, tmp_path: Path, choice: random.Random
) -> None:
    counted = operations(sqlite_template, tmp_path)
    assert min(counted[operation] for operation in OPERATIONS) > 5, "all operations were seen"
    every(choice.sample(points(counted), 12), lambda point: broken(sqlite_template, tmp_path, point))


@pytest.mark.soak
@pytest.mark.timeout(1200)
def test_nothing_is_lost_whichever_operation_fails(sqlite_template: Path, tmp_path: Path) -> None:
    counted = operations(sqlite_template, tmp_path)
    every(points(counted), lambda point: broken(sqlite_template, tmp_path, point))
