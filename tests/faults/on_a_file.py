"""SQLite files that were prepared once, and lines to them on which there is trouble (``trouble``): of this process, or
of processes that are told of it in a folder."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Any, Self

from tests.faults.trouble import (
    LASTING,
    NEVER,
    PROGRAM,
    STATEMENTS,
    VARIABLE,
    WAITING,
    Trouble,
    statements,
    tell,
    waiting,
    watching,
)
from tests.support.waiting import until


class Files:
    """`fresh()` is a copy of the file that was prepared."""

    def __init__(self, folder: Path, prepare: Callable[[str], None]) -> None:
        self._path = folder / "prepared.db"
        self._prepare = prepare

    @contextmanager
    def fresh(self) -> Iterator[str]:
        if not self._path.exists():
            self._prepare(f"sqlite:///{self._path}")
            free(str(self._path))
        with TemporaryDirectory() as folder:
            shutil.copyfile(self._path, f"{folder}/jobs.db")
            yield f"sqlite:///{folder}/jobs.db"
            free(f"{folder}/jobs.db")

    def close(self) -> None:
        """The folder is whoever's it was."""


def free(path: str) -> None:
    """Nobody has the write lock, nobody reads on in a transaction that was forgotten, and the file is sound."""
    with closing(sqlite3.connect(path, isolation_level=None, timeout=5)) as connection:
        connection.execute("begin immediate")
        connection.execute("rollback")
        assert connection.execute("pragma wal_checkpoint(truncate)").fetchone() == (0, 0, 0)
        assert connection.execute("pragma quick_check").fetchone() == ("ok",)


class Here:
    """What this process asks for."""

    settings: dict[str, Any] = {}  # noqa: RUF012 - there are none

    def __init__(self, url: str) -> None:
        self.url = url
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        self._watch = self._stack.enter_context(watching(self.url))
        self._stack.enter_context(waiting(WAITING))
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    @property
    def asked(self) -> int:
        return self._watch.asked

    def trouble(self, what: Trouble, seconds: float) -> None:
        self._watch.expect(what, seconds)

    def over(self) -> None:
        self._watch.over()


class There:
    """What a process asks for that is started with these settings."""

    def __init__(self, url: str, folder: Path) -> None:
        self.url = url
        self.settings = {"program": PROGRAM, "extra": {VARIABLE: str(folder)}}
        self._folder = folder

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None and (self._folder / STATEMENTS).exists():
            print("\n".join(self.statements[-40:]))

    @property
    def statements(self) -> list[str]:
        return statements(self._folder)

    @property
    def asked(self) -> int:
        return len(self.statements)

    def trouble(self, what: Trouble, seconds: float) -> None:
        tell(self._folder, what, seconds)

    def over(self) -> None:
        """It has not begun, and does not; or it has, and is waited for."""
        tell(self._folder, (NEVER, "written"), 0.0)
        until(lambda: not (self._folder / LASTING).exists(), "the trouble is over")
