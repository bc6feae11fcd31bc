"""A small in-memory file system, and helpers that fill it to the last page."""

from __future__ import annotations

import contextlib
import sqlite3
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast import App
from holdfast.app.internals import session_of
from holdfast.errors import StoreUnavailable
from tests.faults.workload import PATIENT
from tests.support.stores import put, spec


@contextlib.contextmanager
def mounted() -> Iterator[Path]:
    """Mount a file system of 8 MB, with a ballast file of 6 MB that a test can delete."""
    with tempfile.TemporaryDirectory(prefix="holdfast-tiny-") as point:
        mount = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", point], capture_output=True, text=True, check=False
        )
        if mount.returncode != 0:
            pytest.skip(f"no file system can be mounted here: {mount.stderr.strip()}")
        try:
            disk = Path(point)
            (disk / "ballast").write_bytes(b"\0" * 6 * 1024 * 1024)
            yield disk
        finally:
            subprocess.run(["umount", "--lazy", point], check=True)


def fill(app: App, text: str = "x" * 20_000) -> tuple[list[str], StoreUnavailable]:
    """Enqueue jobs until the disk is full; returns the accepted jobs and the error."""
    accepted: list[str] = []
    for _ in range(2_000):
        try:
            accepted += put(
                session_of(app).store, spec("work", payload={"number": 1}, retry=PATIENT, external_ref=text)
            )
        except StoreUnavailable as error:
            return accepted, error
    raise AssertionError("the disk is not full yet")


def fill_rest(disk: Path) -> None:
    """Fill the disk to the last page, so that small writes fail as well."""
    with (disk / "filler").open("wb", buffering=0) as filler, contextlib.suppress(OSError):
        while True:
            filler.write(b"\0" * 4096)


@contextlib.contextmanager
def full(app: App, disk: Path) -> Iterator[list[str]]:
    """Keep the disk full until the ballast is deleted; yields the jobs that fill it.

    An open read transaction keeps SQLite from restarting its log: a checkpoint could free space for a small write.
    """
    with contextlib.closing(sqlite3.connect(disk / "jobs.db", isolation_level=None)) as reader:
        reader.execute("begin")
        reader.execute("select count(*) from holdfast_job").fetchone()
        jobs = fill(app)[0]
        fill_rest(disk)
        jobs += fill(app, text="")[0]
        yield jobs
