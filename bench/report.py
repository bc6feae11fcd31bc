"""The tables of a run, and the document that ``--json`` writes."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from bench.bars import PG, Bar, over
from bench.facts import pinned
from bench.peers.catalog import Subject
from bench.peers.run import Results
from bench.timing import Row

COLUMNS = ("W1", "W2", "W3", "×", "W4", "W5 p50/p99", "W6", "W7", "CPU w+s", "W8 RSS", "1,000 held")
_PLACES = {"postgres": "PostgreSQL", "sqlite": "SQLite", "redis": "Redis"}


def place(subject: Subject) -> str:
    return _PLACES[subject.backend]


def cells(subject: Subject, results: Results) -> list[str]:
    """One row. ``×`` is W3 over ours on the same backend (on PostgreSQL where we are not on that backend)."""

    def shown(workload: str, *names: str, form: str = "{:,.0f}") -> str:
        found = results.outcomes.get((subject.name, workload))
        if found is None:
            return "–"
        median = found.median
        if median is None:
            return "failed"
        return form.format(*(median[name] for name in names))

    ours = results.figure("holdfast-sqlite" if subject.backend == "sqlite" else PG, "W3", "jobs_s")
    ratio = over(results.figure(subject.name, "W3", "jobs_s"), ours)
    return [
        shown("W1", "jobs_s"),
        shown("W2", "jobs_s"),
        shown("W3", "jobs_s"),
        "–" if ratio is None else f"{ratio:.2f}",
        shown("W4", "jobs_s"),
        shown("W5", "p50_ms", "p99_ms", form="{:.1f}/{:.1f}"),
        shown("W6", "jobs_s"),
        shown("W7", "ratio", form="{:.2f}"),
        shown("W3", "worker_us", "server_us", form="{:.0f}+{:.0f}"),
        shown("W3", "rss_mib"),
        shown("W8", "held_mib"),
    ]


def rows(subjects: Sequence[Subject], results: Results) -> list[list[str]]:
    table = [["", *COLUMNS]]
    for subject in subjects:
        name = f"{subject.title} {pinned(subject)} ({place(subject)})"
        reason = results.skipped.get(subject.name)
        table.append([name, f"skipped: {reason}"] if reason else [name, *cells(subject, results)])
    return table


def text(subjects: Sequence[Subject], results: Results) -> str:
    table = rows(subjects, results)
    widths = [max(len(row[index]) for row in table if len(row) > 2) for index in range(len(COLUMNS) + 1)]
    widths[0] = max(len(row[0]) for row in table)
    lines = []
    for row in table:
        head = row[0].ljust(widths[0])
        rest = (
            [row[1]] if len(row) == 2 else [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
        )
        lines.append("  ".join([head, *rest]).rstrip())
    return "\n".join(lines)


def markdown(subjects: Sequence[Subject], results: Results) -> str:
    """The same as a table for docs/performance.md."""
    table = [row + [""] * (len(COLUMNS) + 1 - len(row)) for row in rows(subjects, results)]
    lines = ["| " + " | ".join(row) + " |" for row in table]
    return "\n".join([lines[0], "|---" * (len(COLUMNS) + 1) + "|", *lines[1:]])


def failures(results: Results) -> list[str]:
    return [f"{each.workload} {each.subject}: {each.failed}" for each in results.outcomes.values() if each.failed]


def document(
    machine: dict[str, Any],
    servers: dict[str, Any],
    subjects: Sequence[Subject],
    results: Results | None,
    bars: Sequence[Bar],
    floor: Sequence[Row],
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
    if floor:
        found["rows"] = [dataclasses.asdict(row) for row in floor]
    if long is not None:
        found["long"] = long
    return found
