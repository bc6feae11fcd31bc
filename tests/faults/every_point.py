"""What faults 48 (every request to PostgreSQL) and 49 (every statement on a SQLite file) share."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import pytest

from tests.faults.scenarios import MaintenanceScenario

Point = TypeVar("Point", bound=tuple[Any, ...])
Kind = TypeVar("Kind")

FORMS = pytest.mark.parametrize("form", ["sync", "async"])


def points(count: int, kinds: Iterable[Kind]) -> list[tuple[int, Kind]]:
    """Return a fault of each kind at each of the first ``count`` requests or statements."""
    return [(number, kind) for kind in kinds for number in range(1, count + 1)]


def every(faults: Sequence[Point], run: Callable[[Point], object]) -> None:
    """Run all faults, also after a failure: several failures often have one reason."""
    failed = []
    for fault in faults:
        try:
            run(fault)
        except Exception as error:
            failed.append(f"--- {fault[1]} {fault[0]}: {type(error).__name__} {error}")
    assert not failed, f"{len(failed)} of {len(faults)}\n" + "\n".join(failed)


def check_maintenance(maintenance: MaintenanceScenario, faults: Callable[[int], Sequence[Any]]) -> None:
    """Maintenance ends the same with each of the faults; their number may depend on that of its requests."""
    requests, ends = maintenance.run(None)

    def run(fault: Any) -> None:
        print(fault)
        actual = maintenance.run(fault)[1]
        assert actual == ends, (actual - ends, ends - actual)

    every(faults(requests), run)


def threads(staying: str) -> set[threading.Thread]:
    """Return the running threads, except those that stay for later use, whose names begin like this."""
    return {each for each in threading.enumerate() if not each.name.startswith(staying)}
