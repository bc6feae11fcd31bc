"""The group ``peers``: every workload for every subject, alternately within a round, with medians at the end.

The speed of a shared machine varies from minute to minute. So things that are compared, two subjects or two workloads
of one, are measured in the same minutes.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.console import note
from bench.peers import environments
from bench.peers.backends import Backends
from bench.peers.bench import Bench, Figures
from bench.peers.catalog import Subject
from bench.peers.environments import EnvironmentFailed
from bench.peers.meters import syncs_per_second
from bench.peers.process import DriverFailed
from bench.peers.workloads import WORKLOADS, Sizes
from bench.quiet import CalmWait


@dataclass
class Outcome:
    """The result of one subject in one workload. If a check fails in any round, there is no figure."""

    subject: str
    workload: str
    rounds: list[Figures] = field(default_factory=list)
    failed: str | None = None

    @property
    def median(self) -> Figures | None:
        if self.failed is not None or not self.rounds:
            return None
        return {name: statistics.median(each[name] for each in self.rounds) for name in self.rounds[0]}


class Results:
    """Outcomes by subject and workload, and the subjects that were skipped, with reasons."""

    def __init__(self) -> None:
        self.outcomes: dict[tuple[str, str], Outcome] = {}
        self.skipped: dict[str, str] = {}
        self.disk: list[dict[str, Any]] = []

    def outcome(self, subject: str, workload: str) -> Outcome:
        return self.outcomes.setdefault((subject, workload), Outcome(subject, workload))

    def read(self, document: dict[str, Any]) -> None:
        """Load the results of an earlier run; existing ones get further rounds."""
        for each in document["results"]:
            outcome = self.outcome(each["subject"], each["workload"])
            outcome.rounds += each["rounds"]
            outcome.failed = outcome.failed or each["failed"]
        for name, subject in document["subjects"].items():
            if subject["skipped"]:
                self.skipped[name] = subject["skipped"]

    def figure(self, subject: str, workload: str, name: str) -> float | None:
        found = self.outcomes.get((subject, workload))
        median = found.median if found else None
        return median.get(name) if median else None


def usable(backends: Backends, subjects: Sequence[Subject], results: Results) -> list[Subject]:
    """Return the subjects whose server and environment are available; print the others with the reason."""
    found = []
    for subject in subjects:
        reason = backends.missing(subject.backend)
        if reason is None:
            try:
                environments.command(subject)
            except EnvironmentFailed as error:
                reason = str(error)
        if reason is None:
            found.append(subject)
        else:
            results.skipped[subject.name] = reason
            note(f"{subject.name} skipped: {reason}")
    return found


def run(
    backends: Backends,
    subjects: Sequence[Subject],
    workloads: Sequence[str],
    sizes: Sizes,
    *,
    rounds: int,
    heavy_rounds: int,
    results: Results,
    calm_wait: CalmWait,
) -> None:
    for turn in range(max(rounds, heavy_rounds)):
        for name in workloads:
            workload = WORKLOADS[name]
            if turn >= (heavy_rounds if workload.heavy else rounds):
                continue
            syncs = syncs_per_second(backends.folder)
            results.disk.append({"workload": name, "round": turn + 1, "fdatasync_s": round(syncs)})
            note(f"{name} round {turn + 1}: the disk syncs {syncs:,.0f} times a second, load {os.getloadavg()[0]:.1f}")
            for subject in subjects:
                if workload.applies(subject):
                    _measure(Bench(backends, subject), name, sizes, turn, results, calm_wait)


def _measure(bench: Bench, name: str, sizes: Sizes, turn: int, results: Results, calm_wait: CalmWait) -> None:
    subject = bench.subject
    outcome = results.outcome(subject.name, name)
    if outcome.failed is not None:
        return
    start = time.monotonic()
    try:
        figures = calm_wait.measure(lambda: WORKLOADS[name].run(bench, sizes))
    except (DriverFailed, OSError) as error:
        outcome.failed = str(error)
        note(f"{name} {subject.name:16} failed: {error}")
        return
    outcome.rounds.append(figures)
    shown = "  ".join(f"{key} {value:,.2f}" for key, value in figures.items())
    note(f"{name} {subject.name:16} round {turn + 1}: {shown}  ({time.monotonic() - start:.1f} s)")


def folder() -> tempfile.TemporaryDirectory[str]:
    """The folder for records, SQLite files and Redis: on a disk, never in a memory file system."""
    parent = Path(tempfile.gettempdir())
    return tempfile.TemporaryDirectory(prefix="holdfast-peers-", dir=parent)
