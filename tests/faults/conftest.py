"""Fault tests: real databases, real processes, real signals; afterwards the checker reads everything."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from holdfast import App
from holdfast.features.assembly import open_store
from tests.faults.tiny_disk import mounted
from tests.support.crew import Crew
from tests.support.ledger import check_ledger


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest) -> str:
    found: str = request.getfixturevalue(f"{request.param}_url")
    return found


@pytest.fixture
def app(url: str) -> Iterator[App]:
    """The program that enqueues and looks on. Afterwards every ledger is replayed, counters included."""
    with closing(App(url, name="tests", enqueued_by="tester")) as app:
        yield app
    with closing(open_store(url)) as store:
        check_ledger(store)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where handlers leave their effects and workers their logs."""
    made = tmp_path / "marks"
    made.mkdir()
    return made


@pytest.fixture
def crew(url: str, folder: Path) -> Iterator[Crew]:
    """A lease of one second, and a sweep as often: the smallest that a busy machine can keep."""
    with Crew(url, folder, lease=1.0) as crew:
        yield crew


@pytest.fixture
def tiny_disk() -> Iterator[Path]:
    """A file system of 8 MB, most of it taken; skipped where none can be mounted."""
    with mounted() as disk:
        yield disk
