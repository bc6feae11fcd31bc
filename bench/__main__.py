"""``python -m bench``: run groups of benchmarks, print their tables, and tell by the exit code whether every bar held.

`bench/README.md` describes the groups.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from bench import (
    bars,
    chart,
    circumstances,
    compare,
    facts,
    fairness,
    floor,
    flows,
    idle,
    latency,
    limits,
    mixes,
    pages,
    producers,
    rates,
    report,
    retention,
    sealing,
    service,
    variants,
    waiting,
    writes,
)
from bench.bars import Bar
from bench.console import note
from bench.figures import Figure, Run
from bench.peers import run as peers
from bench.peers.backends import Backends
from bench.peers.catalog import BY_NAME, DURABLE, MAIN, OURS, Subject
from bench.peers.workloads import QUICK, WORKLOADS, Sizes
from bench.quiet import CalmWait
from bench.timing import Row
from bench.waiting import Beside


@dataclass(frozen=True)
class Group:
    """What is measured, as which rows, and the bars of the rows."""

    measure: Callable[[Run], Sequence[Any]]
    bars: Callable[[Sequence[Any]], list[Bar]]
    row: type[Any] = Beside


def _figures(name: str, measure: Callable[[Run], Any]) -> Group:
    return Group(lambda run: list(measure(run)), partial(bars.of_figures, name), Figure)


def _sized(module: Any, judge: Callable[[Sequence[Any]], list[Bar]]) -> Group:
    """A group whose module has a function ``run`` and its sizes."""

    def measure(run: Run) -> Sequence[Any]:
        longer = getattr(module, "LONG", None)
        sizes = longer if run.long and longer is not None else module.QUICK if run.quick else module.Sizes()
        found: Sequence[Any] = module.run(run.backends, run.store, sizes)
        return found

    return Group(measure, judge)


GROUPS: dict[str, Group] = {
    "floor": Group(lambda run: floor.run(run.store, quick=run.quick), bars.of_floor, Row),
    **{
        name: _figures(name, measure)
        for name, measure in {
            "producers": producers.producers,
            "latency": latency.latency,
            "closed-loop": latency.closed_loop,
            "variants": variants.variants,
            "workers": variants.workers,
            "idle": idle.idle,
            **mixes.MIXES,
        }.items()
    },
    "writes": Group(lambda run: writes.run(run.backends, quick=run.quick), bars.of_writes, writes.Writes),
    "waiting": _sized(waiting, bars.of_waiting),
    "workflows": _sized(flows, bars.of_workflows),
    "limits": _sized(limits, bars.of_limits),
    "rates": _sized(rates, bars.of_rates),
    "fairness": _sized(fairness, bars.of_fairness),
    "retention": _sized(retention, bars.of_retention),
    "sealing": _sized(sealing, bars.of_sealing),
    "service": _sized(service, bars.of_service),
    "pages": Group(
        lambda run: pages.run(run.backends, pages.QUICK if run.quick else pages.Sizes()), bars.of_pages, pages.Screen
    ),
    "reads": Group(
        lambda run: service.reads(run.backends, run.store, service.QUICK if run.quick else service.Sizes()), list, Bar
    ),
    "jit": Group(lambda run: circumstances.jit(circumstances.QUICK if run.quick else circumstances.Sizes()), list, Bar),
    "storm": Group(
        lambda run: circumstances.storm(run.backends, circumstances.QUICK if run.quick else circumstances.Sizes()),
        list,
        Bar,
    ),
}
# Groups of several: the peers have workloads of their own.
SEVERAL = {"peers": (), "steps": ("writes",), "mixes": tuple(mixes.MIXES)}
QUICK_WORKLOADS = ("W1", "W2", "W3", "W5")
STEPS = "W9"  # the workload of the group steps


@dataclass
class Measured:
    """The results of a run: those of the workloads, and rows by group."""

    servers: dict[str, Any] = field(default_factory=dict)
    results: peers.Results | None = None
    rows: dict[str, list[Any]] = field(default_factory=dict)
    runs: list[str] = field(default_factory=list)

    @property
    def figures(self) -> list[Figure]:
        """What has a figure beside another, the workloads first."""
        found = [] if self.results is None else report.figures(self.results)
        return [*found, *(row for rows in self.rows.values() for row in rows if isinstance(row, Figure))]

    def bars(self, stores: Sequence[str] = ("PostgreSQL", "SQLite")) -> list[Bar]:
        found: list[Bar] = []
        if self.results is not None:
            compared = report.figures(self.results)
            for workload in dict.fromkeys(workload for _, workload in self.results.outcomes):
                found += bars.of_figures(workload, [each for each in compared if each.group == workload], stores)
        for name, group in GROUPS.items():
            if name in self.rows:
                rows = self.rows[name]
                found += bars.of_figures(name, rows, stores) if group.row is Figure else group.bars(rows)
        return found

    def read(self, document: dict[str, Any]) -> None:
        """Load the results of an earlier run."""
        if {"at", "commit"} <= document.keys():
            run = f"{document['at'][:10]} ({document['commit']})"
            self.runs += [run] if run not in self.runs else []
        if "results" in document:
            self.results = self.results or peers.Results()
            self.results.read(document)
        for name, group in GROUPS.items():
            if name in document:
                self.rows.setdefault(name, []).extend(group.row(**each) for each in document[name])


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--only", choices=(*SEVERAL, *GROUPS), help="one group instead of all")
    parser.add_argument("--quick", action="store_true", help="fewer jobs, one round, the main peers, W1 W2 W3 W5 W9")
    parser.add_argument("--long", action="store_true", help="the full sizes of mixes, fairness and retention: hours")
    parser.add_argument("--store", choices=("sqlite", "postgres", "both"), default="both",
                        help="one store instead of both")  # fmt: skip
    parser.add_argument("--peers", help=f"a,b,c of {', '.join(BY_NAME)}; Holdfast is always there")
    parser.add_argument("--workloads", help=f"a,b,c of {', '.join(WORKLOADS)}")
    parser.add_argument("--rounds", type=int, help="rounds of W1 to W5 and W9 (3) and of each group of figures (1)")
    parser.add_argument("--heavy-rounds", type=int, default=1, help="rounds of W6 to W8 (1)")
    parser.add_argument("--calm-wait", type=float, default=0.0, help="seconds to wait for calm before each measurement")
    parser.add_argument("--retakes", type=int, default=0, help="how often to repeat one that others disturbed")
    parser.add_argument("--against", type=Path, metavar="CHECKOUT",
                        help="only compare the cost of W1 W2 W3 W5 with that checkout's")  # fmt: skip
    parser.add_argument("--read", type=Path, action="append", help="measure nothing: show what --json has written")
    parser.add_argument("--json", type=Path, help="also write everything to this file")
    parser.add_argument("--chart", type=Path, help="also draw W3 and W5, or the producers, into this SVG file")
    parser.add_argument("--docs", type=Path, help="also replace the tables in this page")
    return parser.parse_args()


def chosen(options: argparse.Namespace) -> tuple[list[Subject], list[str], list[str]]:
    """Return the subjects, the workloads and the groups. W9 belongs to the groups peers and steps, and has its own
    peers."""
    wanted = {options.only} if options.only else {*SEVERAL, *GROUPS}
    groups = [name for name in GROUPS if name in wanted or any(name in SEVERAL.get(each, ()) for each in wanted)]
    workloads = [] if "peers" not in wanted else list(QUICK_WORKLOADS if options.quick else WORKLOADS)
    if "steps" in wanted and STEPS not in workloads:
        workloads.append(STEPS)
    names = [*OURS, *((MAIN if options.quick else BY_NAME) if "peers" in wanted else ())]
    names += DURABLE if "steps" in wanted else ()
    if options.workloads and workloads:
        workloads = options.workloads.split(",")
    if options.peers:
        names = [*OURS, *options.peers.split(",")]
    unknown = [each for each in names if each and each not in BY_NAME]
    unknown += [each for each in workloads if each not in WORKLOADS]
    if unknown:
        sys.exit(f"unknown: {', '.join(unknown)}")
    subjects = [BY_NAME[name] for name in dict.fromkeys(names) if name]
    return [each for each in subjects if options.store in (each.backend, "both")], workloads, groups


def show(subjects: list[Subject], measured: Measured, found: Sequence[Bar]) -> None:
    if measured.results is not None:
        print("\njobs/s; W5 in ms; CPU in µs a job (worker + server) in W3, a step in W9; bytes a job; memory in MiB\n")
        print(report.text(subjects, measured.results))
        for failure in report.failures(measured.results):
            print(f"failed: {failure}")
    for name, rows in measured.rows.items():
        if rows and isinstance(rows[0], Figure):
            print(f"\n{name}\n{report.of_group(rows)}")
    if found:
        print("\nBars")
    for bar in found:
        print(bar.line())


def write(options: argparse.Namespace, subjects: list[Subject], measured: Measured) -> None:
    if options.chart:
        many = measured.rows.get("producers")
        options.chart.write_text(
            chart.producers(many) if many else chart.draw(subjects, measured.results or peers.Results())
        )
    if options.docs:
        report.update(options.docs, subjects, measured.results, measured.figures, measured.runs)


def read(options: argparse.Namespace) -> int:
    """Print the results of earlier runs without measuring."""
    measured = Measured()
    for path in options.read:
        measured.read(json.loads(path.read_text()))
    known = set() if measured.results is None else {name for name, _ in measured.results.outcomes}
    subjects = [each for each in BY_NAME.values() if each.name in known]
    show(subjects, measured, measured.bars())
    for rows in measured.rows.values():
        for row in rows:
            if not isinstance(row, (Figure, Row, Bar)):
                print(row.line())
    write(options, subjects, measured)
    return _verdict(measured, measured.bars(), less=True)


def _verdict(measured: Measured, found: Sequence[Bar], *, less: bool) -> int:
    """The exit code. A goal that was not measured is not held, unless the run was to measure less."""
    failed = measured.results is not None and bool(report.failures(measured.results))
    return int(failed or any(bar.held is False or (bar.held is None and not less) for bar in found))


def _interrupt(number: int, frame: object) -> None:
    raise KeyboardInterrupt


def measure_peers(
    options: argparse.Namespace, backends: Backends, subjects: list[Subject], workloads: list[str], measured: Measured
) -> None:
    results = measured.results = peers.Results()
    usable = peers.usable(backends, subjects, results)
    measured.servers = facts.servers(backends, usable)
    sizes = QUICK if options.quick else Sizes()
    rounds = options.rounds or (1 if options.quick else 3)
    peers.run(
        backends, usable, workloads, sizes,
        rounds=rounds, heavy_rounds=options.heavy_rounds, results=results,
        calm_wait=CalmWait(options.calm_wait, options.retakes),
    )  # fmt: skip


def measure(
    options: argparse.Namespace, backends: Backends, subjects: list[Subject], workloads: list[str], groups: list[str]
) -> Measured:
    measured = Measured()
    run = Run(backends, options.store, options.rounds or 1, options.quick, options.long)
    try:
        if workloads:
            measure_peers(options, backends, subjects, workloads, measured)
        for name in groups:
            measured.rows[name] = list(GROUPS[name].measure(run))
    except KeyboardInterrupt:
        note("interrupted; what was measured so far:")
    return measured


def against(options: argparse.Namespace, backends: Backends) -> int:
    workloads = options.workloads.split(",") if options.workloads else QUICK_WORKLOADS
    rounds = options.rounds or (compare.QUICK_ROUNDS if options.quick else compare.ROUNDS)
    try:
        sizes = QUICK if options.quick else Sizes()
        for cost in compare.run(backends, options.store, options.against.resolve(), sizes, rounds, workloads):
            print(cost.line())
    finally:
        backends.close()
    return 0


def main() -> int:
    # Also if it was started in the background, where shells ignore interrupts.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _interrupt)
    options = arguments()
    if options.read:
        return read(options)
    subjects, workloads, groups = chosen(options)
    with peers.folder() as folder:
        backends = Backends(Path(folder))
        if options.against:
            return against(options, backends)
        try:
            measured = measure(options, backends, subjects, workloads, groups)
        finally:
            backends.close()
    stores = [
        place for name, place in (("postgres", "PostgreSQL"), ("sqlite", "SQLite")) if options.store in (name, "both")
    ]
    found = measured.bars(stores)
    show(subjects, measured, found)
    if options.json:
        document = report.document(facts.machine(), measured.servers, subjects, measured.results, found, measured.rows)
        options.json.write_text(json.dumps(document, indent=1) + "\n")
    write(options, subjects, measured)
    return _verdict(measured, found, less=bool(options.quick or options.peers or options.workloads))


if __name__ == "__main__":
    sys.exit(main())
