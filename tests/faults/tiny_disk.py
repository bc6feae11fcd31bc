"""A disk that is soon full: a small file system in memory, and how to fill it to the last page."""

from __future__ import annotations

import contextlib
import sqlite3
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast import App
from holdfast.errors import StoreUnavailable
from tests.faults.load import PATIENT
from tests.support.stores import put, spec


@contextlib.contextmanager
def mounted() -> Iterator[Path]:
    """A file system of 8 MB, 6 of them taken by a ballast that can be thrown off."""
    with tempfile.TemporaryDirectory(prefix="holdfast-tiny-") as point:
        made = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", point], capture_output=True, text=True, check=False
        )
        if made.returncode != 0:
            pytest.skip(f"no file system can be mounted here: {made.stderr.strip()}")
        try:
            disk = Path(point)
            (disk / "ballast").write_bytes(b"\0" * 6 * 1024 * 1024)
            yield disk
        finally:
            subprocess.run(["umount", "--lazy", point], check=True)


def fill(app: App, text: str = "x" * 20_000) -> tuple[list[str], StoreUnavailable]:
    """Enqueue jobs until the disk says no; answers those that were accepted, and what it said."""
    accepted: list[str] = []
    for _ in range(2_000):
        try:
            accepted += put(app._store, spec("work", payload={"number": 1}, retry=PATIENT, external_ref=text))
        except StoreUnavailable as error:
            return accepted, error
    raise AssertionError("the disk is not full yet")


def take_the_rest(disk: Path) -> None:
    """To the last page: a small write might still have found room."""
    with (disk / "filler").open("wb", buffering=0) as filler, contextlib.suppress(OSError):
        while True:
            filler.write(b"\0" * 4096)


@contextlib.contextmanager
def full(app: App, disk: Path) -> Iterator[list[str]]:
    """The disk is full and stays full until the ballast is removed; yields the jobs that filled it.

    An open read transaction keeps SQLite from starting its log anew: a checkpoint in between could make room for
    something small.
    """
    with contextlib.closing(sqlite3.connect(disk / "jobs.db", isolation_level=None)) as reader:
        reader.execute("begin")
        reader.execute("select count(*) from job").fetchone()
        jobs = fill(app)[0]
        take_the_rest(disk)
        jobs += fill(app, text="")[0]
        yield jobs
