"""The tables of a run, and the document of ``--json``."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench import figures as cells_of
from bench.bars import GOALS, Bar
from bench.facts import pinned
from bench.figures import Figure, number
from bench.peers.catalog import BY_NAME, OURS, Subject
from bench.peers.run import Results

COLUMNS = (
    *("W1", "W2", "W3", "×", "W4", "W5 p50/p99", "W6", "W7", "CPU w+s", "WAL B", "disk B", "W8 RSS", "1,000 held"),
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
        return form.format(*(median[name] for name in names)) if median.keys() >= set(names) else "–"

    def ratio(workload: str, name: str) -> str:
        ours = results.figure(OURS[subject.backend == "sqlite"], workload, name)
        theirs = results.figure(subject.name, workload, name)
        return f"{theirs / ours:.2f}" if ours and theirs else "–"

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
        shown("W3", "wal_bytes"),
        shown("W3", "disk_bytes"),
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
    skipped = [
        f"{_name(each)}  skipped: {results.skipped[each.name]}" for each in subjects if each.name in results.skipped
    ]
    return "\n".join([cells_of.table(table(subjects, results)), *skipped])


# What the workloads compare: the figure, its unit, and the peers of each store. None is only the figure.
COMPARED: Sequence[tuple[str, str, str, str, Mapping[str, Sequence[str | None]]]] = (
    *(
        (workload, "jobs_s", "jobs/s", "jobs/s",
         {OURS[0]: ("pgqueuer", "pgboss", "graphile", "dbos", "restate"), OURS[1]: ("huey", "dbos-sqlite")})
        for workload in ("W1", "W2", "W3", "W4")
    ),
    ("W3", "wal_bytes", "WAL", "B/job", {OURS[0]: (None,)}),
    ("W3", "disk_bytes", "disk of a finished job", "B/job", {OURS[0]: (None,), OURS[1]: (None,)}),
    *(
        ("W5", f"{cut}_ms", cut, "ms", {OURS[0]: (None, "pgqueuer", "graphile"), OURS[1]: (None, "huey")})
        for cut in ("p50", "p99")
    ),
    ("W6", "jobs_s", "jobs/s", "jobs/s", {OURS[0]: ("pgqueuer", "graphile")}),
    ("W7", "ratio", "last tenth over first", "×", {OURS[0]: (None, "pgqueuer", "graphile")}),
    ("W8", "held_mib", "memory", "MiB", {OURS[0]: ("pgqueuer",)}),
    ("W9", "steps_s", "steps/s", "steps/s", {OURS[0]: ("dbos", "absurd", "restate"), OURS[1]: ("dbos-sqlite",)}),
)  # fmt: skip


def figures(results: Results) -> list[Figure]:
    """The workloads as figures beside the peers', and beside our own W3."""
    found = []
    for workload, key, what, unit, compared in COMPARED:
        for name, peers in compared.items():
            ours, store = results.figure(name, workload, key), BY_NAME[name].place
            if ours is None:
                continue
            for peer in peers:
                theirs = None if peer is None else results.figure(peer, workload, key)
                if peer is None or theirs is not None:
                    than = "" if peer is None else BY_NAME[peer].title
                    found.append(Figure(workload, store, what, unit, ours, than, theirs))
            if workload in ("W4", "W6") and (own := results.figure(name, "W3", key)) is not None:
                found.append(Figure(workload, store, what, unit, ours, "own W3", own))
    return found


def of_group(rows: Sequence[Figure]) -> str:
    return cells_of.table([(each.name, *_cells(each)) for each in rows]).replace("**", "")


def _cells(each: Figure) -> tuple[str, ...]:
    ratio = "" if each.ratio is None else f"{each.ratio:.2f}"
    goal = GOALS.get(each.group, {}).get(each.name)
    if goal is None:
        verdict = ("", "")
    else:
        value = each.ours if each.ratio is None else each.ratio
        held = value >= goal.limit if goal.at_least else value <= goal.limit
        verdict = (f"{'≥' if goal.at_least else '≤'} {goal.limit:,g}", "held" if held else "**missed**")
    other = "" if each.other is None else f"{number(each.other)}"
    return (f"{number(each.ours)} {each.unit}", other, ratio, *verdict)


def goals(found: Sequence[Figure]) -> str:
    """The figures that have a goal, as Markdown, each on one line."""
    rows = [("", "store", "Holdfast", "compared with", "ratio", "goal", "")]
    for each in found:
        if each.name in GOALS.get(each.group, {}):
            ours, other, ratio, limit, verdict = _cells(each)
            rows.append(
                (f"{each.group}: {each.what}", each.store, ours, f"{each.than} {other}".strip(), ratio, limit, verdict)
            )
    return cells_of.markdown(rows)


def update(
    page: Path, subjects: Sequence[Subject], results: Results | None, found: Sequence[Figure], runs: Sequence[str] = ()
) -> None:
    """Replace the tables between the marks of a page. What was not measured stays as it is."""
    text = page.read_text()
    tables = {
        "goals": "\n\n".join([*([f"Measured {', '.join(runs)}."] if runs else ()), goals(found)]) if found else None
    }
    tables["peers"] = None if results is None else cells_of.markdown(table(subjects, results))
    for name, shown in tables.items():
        if shown is not None:
            head, start, rest = text.partition(f"<!-- {name} -->\n")
            _, end, tail = rest.partition(f"<!-- /{name} -->")
            if not start or not end:
                raise ValueError(f"{page} has no marks for {name}")
            text = f"{head}{start}\n{shown}\n\n{end}{tail}"
    page.write_text(text)


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
    rows: Mapping[str, Sequence[Any]],
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
    for name, each in rows.items():
        found[name] = [dataclasses.asdict(row) for row in each]
    return found
