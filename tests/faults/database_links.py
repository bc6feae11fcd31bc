"""Links between a program and its database on which a test injects faults, and copies of prepared SQLite files."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Protocol, Self

from tests.faults.sqlite_faults import (
    BUSY_TIMEOUT,
    LASTING,
    NEVER,
    PROGRAM,
    STATEMENTS,
    VARIABLE,
    Fault,
    busy_timeout,
    schedule_fault,
    statements,
    watching,
)
from tests.support.waiting import until


class Databases(Protocol):
    """Copies of a database that is prepared once."""

    def fresh(self) -> AbstractContextManager[str]: ...
    def close(self) -> None: ...


class Link(Protocol):
    """`Proxy` is a link to PostgreSQL."""

    url: str
    settings: dict[str, Any]
    """Settings of a worker process that uses the link."""

    @property
    def requests(self) -> int:
        """Requests so far."""
        ...

    def inject(self, fault: Any, seconds: float, /) -> None: ...
    def clear(self) -> None:
        """Cancel a fault that has not started, and end one that has."""
        ...


@contextmanager
def sqlite_link(url: str) -> Iterator[Link]:
    """A SQLite file that this process uses."""
    with watching(url) as injector, busy_timeout(BUSY_TIMEOUT):
        yield injector


class SqliteProcessLink:
    """A SQLite file that a process started with ``settings`` uses. The process reads faults from the folder."""

    def __init__(self, url: str, folder: Path) -> None:
        self.url = url
        self.settings = {"program": PROGRAM, "extra": {VARIABLE: str(folder)}}
        self._folder = folder

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if error is not None and (self._folder / STATEMENTS).exists():
            print("\n".join(self.statements[-40:]))

    @property
    def statements(self) -> list[str]:
        return statements(self._folder)

    @property
    def requests(self) -> int:
        return len(self.statements)

    def inject(self, fault: Fault, seconds: float) -> None:
        schedule_fault(self._folder, fault, seconds)

    def clear(self) -> None:
        """Replace a fault that has not started by one that never starts; wait for the end of one that has."""
        schedule_fault(self._folder, (NEVER, "written"), 0.0)
        until(lambda: not (self._folder / LASTING).exists(), "the fault is over")


class SqliteFiles:
    """Copies of a SQLite file that ``prepare`` fills once."""

    def __init__(self, folder: Path, prepare: Callable[[str], None]) -> None:
        self._path = folder / "prepared.db"
        self._prepare = prepare

    @contextmanager
    def fresh(self) -> Iterator[str]:
        if not self._path.exists():
            self._prepare(f"sqlite:///{self._path}")
            check_unlocked(str(self._path))
        with TemporaryDirectory() as folder:
            shutil.copyfile(self._path, f"{folder}/jobs.db")
            yield f"sqlite:///{folder}/jobs.db"
            check_unlocked(f"{folder}/jobs.db")

    def close(self) -> None:
        """Nothing to close: the folder belongs to the caller."""


def check_unlocked(path: str) -> None:
    """Check that no connection holds the write lock or an open read transaction, and that the file is sound."""
    with closing(sqlite3.connect(path, isolation_level=None, timeout=5)) as connection:
        connection.execute("begin immediate")
        connection.execute("rollback")
        assert connection.execute("pragma wal_checkpoint(truncate)").fetchone() == (0, 0, 0)
        assert connection.execute("pragma quick_check").fetchone() == ("ok",)
