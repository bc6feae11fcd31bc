"""Which files a program consists of, and whether one of them has changed. Polling: no dependency, every file system."""

from __future__ import annotations

import sys
import sysconfig
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import holdfast

# Installed code does not change while somebody works on a project, and there are thousands of files of it.
_INSTALLED = frozenset({"site-packages", "dist-packages"})
_NOT_THE_PROJECT = tuple(
    Path(folder).resolve()
    for folder in (sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"), Path(holdfast.__file__).parent)
)


def imported_files() -> set[str]:
    """The source files of the project's modules that have been imported by now."""
    named = (getattr(module, "__file__", None) for module in list(sys.modules.values()))
    return {name for name in named if isinstance(name, str) and _is_of_project(name)}


def files_of(error: BaseException) -> set[str]:
    """The files an error came through: a module that could not be imported is not among the imported ones."""
    found: set[str] = set()
    for each in _chain(error):
        if isinstance(each, SyntaxError) and each.filename:
            found.add(each.filename)
        trace = each.__traceback__
        while trace is not None:
            found.add(trace.tb_frame.f_code.co_filename)
            trace = trace.tb_next
    return {name for name in found if _is_of_project(name)}


def expected_files(app: str, folder: Path) -> set[str]:
    """Where the app's module should be, whether or not it is there: ``shop.jobs:app`` is shop/jobs.py or a package."""
    name = app.partition(":")[0]
    if name.endswith(".py"):
        return {str((folder / name).resolve())}
    module = folder.joinpath(*name.split("."))
    return {str(module.with_suffix(".py")), str(module / "__init__.py")}


class Watch:
    """Remembers each file as it was when first seen; one that was written after ``began`` has changed already."""

    def __init__(self) -> None:
        self._began = time.time_ns()
        self._seen: dict[str, int | None] = {}

    def changed(self, files: Iterable[str]) -> list[str]:
        return sorted(name for name in files if self._has_changed(name))

    def _has_changed(self, name: str) -> bool:
        now = _written(name)
        if name not in self._seen:
            self._seen[name] = now
            return now is not None and now > self._began
        before, self._seen[name] = self._seen[name], now
        return now != before


def _written(name: str) -> int | None:
    try:
        return Path(name).stat().st_mtime_ns
    except OSError:
        return None


def _is_of_project(name: str) -> bool:
    path = Path(name)
    if path.suffix != ".py" or not _INSTALLED.isdisjoint(path.parts):
        return False
    return not any(path.resolve().is_relative_to(folder) for folder in _NOT_THE_PROJECT)


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
