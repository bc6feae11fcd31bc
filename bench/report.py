"""The tables of a run, and the document of ``--json``."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from bench.bars import PG, Bar, over
from bench.facts import pinned
from bench.peers.catalog import Subject
from bench.peers.run import Results
from bench.timing import Row
from bench.waiting import Beside
from bench.writes import Writes

COLUMNS = (
    *("W1", "W2", "W3", "×", "W4", "W5 p50/p99", "W6", "W7", "CPU w+s", "W8 RSS", "1,000 held"),
    *("W9 steps/s", "W9 ×", "W9 CPU w+s"),
)


def cells(subject: Subject, results: Results) -> list[str]:
    """One row. ``×`` is the figure divided by ours on the same backend (or on PostgreSQL, if we do not run on that
    backend)."""

    def shown(workload: str, *names: str, form: str = "{:,.0f}") -> str:
        found = results.outcomes.get((subject.name, workload))
        if found is None:
            return "–"
        median = found.median
        if median is None:
            return "failed"
        return form.format(*(median[name] for name in names))

    def ratio(workload: str, name: str) -> str:
        ours = results.figure("holdfast-sqlite" if subject.backend == "sqlite" else PG, workload, name)
        found = over(results.figure(subject.name, workload, name), ours)
        return "–" if found is None else f"{found:.2f}"

    return [
        shown("W1", "jobs_s"),
        shown("W2", "jobs_s"),
        shown("W3", "jobs_s"),
        ratio("W3", "jobs_s"),
        shown("W4", "jobs_s"),
        shown("W5", "p50_ms", "p99_ms", form="{:.1f}/{:.1f}"),
        shown("W6", "jobs_s"),
        shown("W7", "ratio", form="{:.2f}"),
        shown("W3", "worker_us", "server_us", form="{:.0f}+{:.0f}"),
        shown("W3", "rss_mib"),
        shown("W8", "held_mib"),
        shown("W9", "steps_s"),
        ratio("W9", "steps_s"),
        shown("W9", "worker_us", "server_us", form="{:.0f}+{:.0f}"),
    ]


def table(subjects: Sequence[Subject], results: Results) -> list[list[str]]:
    """Return a table with its header; columns without figures are left out."""
    measured = [each for each in subjects if each.name not in results.skipped]
    rows = [[_name(each), *cells(each, results)] for each in measured]
    kept = [index for index in range(1, len(COLUMNS) + 1) if any(row[index] != "–" for row in rows)]
    return [["", *(COLUMNS[index - 1] for index in kept)], *([row[0], *(row[i] for i in kept)] for row in rows)]


def text(subjects: Sequence[Subject], results: Results) -> str:
    rows = table(subjects, results)
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    lines = ["  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]).rstrip() for row in rows]
    lines += [
        f"{_name(each)}  skipped: {results.skipped[each.name]}" for each in subjects if each.name in results.skipped
    ]
    return "\n".join(lines)


def markdown(subjects: Sequence[Subject], results: Results) -> str:
    """Return the table for docs/performance.md."""
    rows = table(subjects, results)
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join([lines[0], "|---" * len(rows[0]) + "|", *lines[1:]])


def _name(subject: Subject) -> str:
    return f"{subject.title} {pinned(subject)} ({subject.place})"


def failures(results: Results) -> list[str]:
    return [f"{each.workload} {each.subject}: {each.failed}" for each in results.outcomes.values() if each.failed]


def document(
    machine: dict[str, Any],
    servers: dict[str, Any],
    subjects: Sequence[Subject],
    results: Results | None,
    bars: Sequence[Bar],
    floor: Sequence[Row],
    writes: Sequence[Writes],
    waiting: Sequence[Beside],
    long: dict[str, Any] | None,
) -> dict[str, Any]:
    found: dict[str, Any] = {**machine, "servers": servers}
    if results is not None:
        found["subjects"] = {
            each.name: {
                "title": each.title,
                "version": pinned(each),
                "backend": each.backend,
                "settings": each.settings,
                "skipped": results.skipped.get(each.name),
            }
            for each in subjects
        }
        found["results"] = [
            {
                "subject": each.subject,
                "workload": each.workload,
                "median": each.median,
                "rounds": each.rounds,
                "failed": each.failed,
            }
            for each in results.outcomes.values()
        ]
        found["disk"] = results.disk
    found["bars"] = [{**dataclasses.asdict(bar), "held": bar.held} for bar in bars]
    for name, rows in (("rows", floor), ("writes", writes), ("waiting", waiting)):
        if rows:
            found[name] = [dataclasses.asdict(row) for row in rows]
    if long is not None:
        found["long"] = long
    return found
