"""Queries about processes by id, and a fresh import of a module whose app reads its database URL at import."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tests.support.waiting import until


def running(pid: int) -> bool:
    """Whether a process runs. A zombie has ended: its parent may be gone."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in ("Z", "X")


def until_gone(*pids: int) -> None:
    until(lambda: not any(running(pid) for pid in pids), f"none of {pids} is running", limit=10.0)


def marked(path: Path, count: int = 2) -> list[int]:
    """Wait until a handler has written its process ids, and return them."""
    return until(lambda: pids if len(pids := _pids(path)) == count else [], f"{path.name} has been written")


def _pids(path: Path) -> list[int]:
    return [int(pid) for pid in path.read_text().split()] if path.exists() else []


def children_of(pid: int) -> list[int]:
    children = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(fields[1]) == pid and fields[0] not in ("Z", "X"):
            children.append(int(path.parent.name))
    return children


def imported(name: str, url: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.setenv("HOLDFAST_URL", url)
    monkeypatch.delitem(sys.modules, name, raising=False)
    return importlib.import_module(name)
