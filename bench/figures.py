"""Figures beside what they are compared with, measured alternately in one run, and the table that a group ends with."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from bench.console import note
from bench.peers import environments
from bench.peers.backends import Backends
from bench.peers.bench import Bench
from bench.peers.catalog import BY_NAME, OURS
from bench.peers.environments import EnvironmentFailed
from bench.peers.process import DriverFailed

PG, LITE = "PostgreSQL", "SQLite"


@dataclass(frozen=True)
class Run:
    """What a group of figures runs on: servers, stores, and whether it is short, usual or long."""

    backends: Backends
    store: str = "both"
    rounds: int = 1
    quick: bool = False
    long: bool = False

    def wants(self, backend: str) -> bool:
        return self.store in (backend, "both")

    @property
    def ours(self) -> list[Bench]:
        return [Bench(self.backends, BY_NAME[name]) for name in OURS if self.wants(BY_NAME[name].backend)]

    def benches(self, *names: str) -> list[Bench]:
        """The subjects that are on the chosen stores and can run here."""
        found = []
        for subject in (BY_NAME[name] for name in names if self.wants(BY_NAME[name].backend)):
            try:
                environments.command(subject)
            except EnvironmentFailed as error:
                note(f"{subject.name} skipped: {error}")
            else:
                found.append(Bench(self.backends, subject))
        return found

    def size(self, quick: float, usual: float, long: float) -> int:
        return int(quick if self.quick else long if self.long else usual)


@dataclass(frozen=True)
class Figure:
    """One median. ``ratio`` is ours over the other; without another there is only the figure."""

    group: str
    store: str
    what: str
    unit: str
    ours: float
    than: str = ""
    other: float | None = None

    @property
    def ratio(self) -> float | None:
        return self.ours / self.other if self.other else None

    @property
    def name(self) -> str:
        return f"{self.store}, {self.what}" + (f", over {self.than}" if self.than else "")


class Rounds:
    """Values by name over several rounds."""

    def __init__(self) -> None:
        self.values: dict[str, list[float]] = {}
        self.failed: list[str] = []

    def take(self, name: str, work: Callable[[], float | dict[str, float]]) -> None:
        """Measure once. A subject that fails its check has no figure in this run."""
        if name in self.failed:
            return
        try:
            found = work()
        except (DriverFailed, OSError) as error:
            self.failed.append(name)
            note(f"{name} failed: {error}")
            return
        for key, value in found.items() if isinstance(found, dict) else (("", found),):
            self.values.setdefault(f"{name} {key}".rstrip(), []).append(value)
            note(f"{name} {key} {value:,.2f}")

    def __getitem__(self, name: str) -> float | None:
        failed = any(name == each or name.startswith(f"{each} ") for each in self.failed)
        return None if failed or name not in self.values else statistics.median(self.values[name])

    def figure(
        self, group: str, store: str, what: str, unit: str, ours: str, than: str = "", other: str = ""
    ) -> list[Figure]:
        """The figure, or nothing if one of the two was not measured. Its bar then says that."""
        mine, theirs = self[ours], self[other] if other else None
        if mine is None or (other and theirs is None):
            return []
        return [Figure(group, store, what, unit, mine, than, theirs)]


def number(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.1f}" if abs(value) >= 10 else f"{value:.3g}"


def table(rows: Iterable[Sequence[str]]) -> str:
    """Align columns; the first is text."""
    cells = [list(row) for row in rows]
    widths = [max(len(cell) for cell in column) for column in zip(*cells, strict=True)]
    return "\n".join("  ".join([r[0].ljust(widths[0]), *map(str.rjust, r[1:], widths[1:])]).rstrip() for r in cells)


def markdown(rows: Sequence[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join([lines[0], "|---" * len(rows[0]) + "|", *lines[1:]])


def percentile(sorted_values: Sequence[float], share: float) -> float:
    return sorted_values[min(len(sorted_values) - 1, int(len(sorted_values) * share))]
