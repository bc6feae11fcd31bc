"""``python -m bench``: run groups of benchmarks and print their tables.

The groups: plain SQL (floor), other queues (peers), other systems with durable steps (steps), waiting jobs (waiting),
workflows (workflows), limits (limits), accuracy of rate limits (rates), fair shares between tenants (fairness),
retention (retention), sealing of the ledger (sealing), the HTTP service (service), dashboard pages with five million
jobs (pages), a server with JIT (jit), lost connections (storm), an old transaction (pressure), and idle workers (idle).
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from bench import (
    chart,
    circumstances,
    compare,
    facts,
    fairness,
    floor,
    flows,
    limits,
    longrun,
    pages,
    rates,
    report,
    retention,
    sealing,
    service,
    waiting,
    writes,
)
from bench.bars import (
    Bar,
    bars,
    of_fairness,
    of_limits,
    of_pages,
    of_rates,
    of_retention,
    of_sealing,
    of_service,
    of_waiting,
    of_workflows,
    of_writes,
)
from bench.console import note
from bench.peers import run as peers
from bench.peers.backends import Backends
from bench.peers.catalog import BY_NAME, DURABLE, MAIN, OURS, Subject
from bench.peers.workloads import QUICK, WORKLOADS, Sizes
from bench.quiet import Patience
from bench.timing import Row
from bench.waiting import Beside

GROUPS = (
    *(
        "floor",
        "peers",
        "steps",
        "waiting",
        "workflows",
        "limits",
        "rates",
        "fairness",
        "retention",
        "sealing",
        "service",
    ),
    *("pages", "jit", "storm", "pressure", "idle"),
)
QUICK_WORKLOADS = ("W1", "W2", "W3", "W5")
STEPS = "W9"  # the workload of the group steps


@dataclass
class Measured:
    """The results of a run, by group."""

    servers: dict[str, Any] = field(default_factory=dict)
    rows: list[Row] = field(default_factory=list)
    results: peers.Results | None = None
    writes: list[writes.Writes] = field(default_factory=list)
    waiting: list[waiting.Beside] = field(default_factory=list)
    workflows: list[Beside] = field(default_factory=list)
    limits: list[Beside] = field(default_factory=list)
    rates: list[Beside] = field(default_factory=list)
    fairness: list[Beside] = field(default_factory=list)
    retention: list[Beside] = field(default_factory=list)
    sealing: list[Beside] = field(default_factory=list)
    service: list[Beside] = field(default_factory=list)
    pages: list[pages.Screen] = field(default_factory=list)
    circumstances: list[Bar] = field(default_factory=list)
    long: dict[str, Any] | None = None

    @property
    def bars(self) -> list[Bar]:
        found = [] if self.results is None else bars(self.results)
        found += [*of_writes(self.writes), *of_waiting(self.waiting), *of_workflows(self.workflows)]
        found += [*of_limits(self.limits), *of_rates(self.rates), *of_fairness(self.fairness)]
        found += [*of_retention(self.retention), *of_sealing(self.sealing), *of_service(self.service)]
        return [*found, *of_pages(self.pages), *self.circumstances]

    def read(self, document: dict[str, Any]) -> None:
        """Load the results of an earlier run."""
        if "results" in document:
            self.results = self.results or peers.Results()
            self.results.read(document)
        self.writes += [writes.Writes(**each) for each in document.get("writes", ())]
        self.waiting += [waiting.Beside(**each) for each in document.get("waiting", ())]
        self.limits += [Beside(**each) for each in document.get("limits", ())]
        self.rates += [Beside(**each) for each in document.get("rates", ())]
        self.fairness += [Beside(**each) for each in document.get("fairness", ())]
        self.retention += [Beside(**each) for each in document.get("retention", ())]
        self.sealing += [Beside(**each) for each in document.get("sealing", ())]
        self.service += [Beside(**each) for each in document.get("service", ())]
        self.circumstances += [Bar(**each) for each in document.get("circumstances", ())]
        self.pages += [pages.Screen(**each) for each in document.get("pages", ())]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--only", choices=GROUPS, help="one group instead of all")
    parser.add_argument("--quick", action="store_true", help="fewer jobs, one round, the main peers, W1 W2 W3 W5 W9")
    parser.add_argument("--long", action="store_true", help="also ten million finished jobs, and 10,000 sleeping ones")
    parser.add_argument("--long-size", type=int, default=10_000_000, help="finished jobs for --long")
    parser.add_argument("--store", choices=("sqlite", "postgres", "both"), default="both",
                        help="for the groups floor, waiting, limits, fairness and sealing")  # fmt: skip
    parser.add_argument("--peers", help=f"a,b,c of {', '.join(BY_NAME)}; Holdfast is always there")
    parser.add_argument("--workloads", help=f"a,b,c of {', '.join(WORKLOADS)}")
    parser.add_argument("--rounds", type=int, help="rounds of W1 to W5 and W9 (3) and beside waiting jobs (7)")
    parser.add_argument("--heavy-rounds", type=int, default=1, help="rounds of W6 to W8 (1)")
    parser.add_argument("--seconds", type=float, help="length of the group pressure (300)")
    parser.add_argument("--patience", type=float, default=0.0, help="seconds to wait for calm before each measurement")
    parser.add_argument("--retakes", type=int, default=0, help="how often to repeat one that others disturbed")
    parser.add_argument("--against", type=Path, metavar="CHECKOUT",
                        help="only compare the cost of W1 W2 W3 W5 with that checkout's")  # fmt: skip
    parser.add_argument("--read", type=Path, action="append", help="measure nothing: show what --json has written")
    parser.add_argument("--json", type=Path, help="also write everything to this file")
    parser.add_argument("--chart", type=Path, help="also draw W3 and W5 into this SVG file")
    parser.add_argument("--markdown", type=Path, help="also write the table as Markdown")
    return parser.parse_args()


def chosen(options: argparse.Namespace) -> tuple[list[Subject], list[str]]:
    """Return the subjects of each workload. W9 belongs to the groups peers and steps, and has its own peers."""
    groups = _groups(options)
    workloads = [] if "peers" not in groups else list(QUICK_WORKLOADS if options.quick else WORKLOADS)
    if "steps" in groups and STEPS not in workloads:
        workloads.append(STEPS)
    names = [*OURS, *((MAIN if options.quick else BY_NAME) if "peers" in groups else ())]
    names += DURABLE if "steps" in groups else ()
    if options.workloads and workloads:
        workloads = options.workloads.split(",")
    if options.peers:
        names = [*OURS, *options.peers.split(",")]
    unknown = [each for each in names if each and each not in BY_NAME]
    unknown += [each for each in workloads if each not in WORKLOADS]
    if unknown:
        sys.exit(f"unknown: {', '.join(unknown)}")
    return [BY_NAME[name] for name in dict.fromkeys(names) if name], workloads


def show(subjects: list[Subject], measured: Measured) -> None:
    if measured.results is not None:
        print(
            "\njobs/s; W5 in ms; CPU in µs a job (worker + server) in W3, a step in W9; memory in MiB; × is over ours\n"
        )
        print(report.text(subjects, measured.results))
        for failure in report.failures(measured.results):
            print(f"failed: {failure}")
    if measured.bars:
        print("\nBars")
    for bar in measured.bars:
        print(bar.line())


def write(options: argparse.Namespace, subjects: list[Subject], results: peers.Results) -> None:
    if options.chart:
        options.chart.write_text(chart.draw(subjects, results))
    if options.markdown:
        options.markdown.write_text(report.markdown(subjects, results) + "\n")


def read(options: argparse.Namespace) -> None:
    """Print the results of earlier runs without measuring."""
    measured = Measured()
    for path in options.read:
        measured.read(json.loads(path.read_text()))
    known = set() if measured.results is None else {name for name, _ in measured.results.outcomes}
    subjects = [each for each in BY_NAME.values() if each.name in known]
    show(subjects, measured)
    for writing in measured.writes:
        print(writing.line())
    for row in (
        *(
            *measured.waiting,
            *measured.limits,
            *measured.rates,
            *measured.fairness,
            *measured.retention,
            *measured.sealing,
        ),
        *measured.service,
    ):
        print(row.line())
    for screen in measured.pages:
        print(screen.line())
    if measured.results is not None:
        write(options, subjects, measured.results)


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
        patience=_patience(options),
    )  # fmt: skip


def measure(options: argparse.Namespace, backends: Backends, subjects: list[Subject], workloads: list[str]) -> Measured:
    measured = Measured()
    groups = _groups(options)
    try:
        if "floor" in groups:
            measured.rows = floor.run(options.store, quick=options.quick)
        if workloads:
            measure_peers(options, backends, subjects, workloads, measured)
        if "steps" in groups:
            measured.writes = writes.run(backends, quick=options.quick)
        if "waiting" in groups:
            sizes = waiting.QUICK if options.quick else waiting.Sizes()
            sizes = replace(sizes, rounds=options.rounds or sizes.rounds)
            measured.waiting = waiting.run(backends, options.store, sizes, _patience(options))
        if "workflows" in groups:
            measured.workflows = flows.run(backends, options.store, flows.QUICK if options.quick else flows.Sizes())
        if "limits" in groups:
            measured.limits = limits.run(backends, options.store, limits.QUICK if options.quick else limits.Sizes())
        if "rates" in groups:
            measured.rates = rates.run(backends, options.store, rates.QUICK if options.quick else rates.Sizes())
        if "fairness" in groups:
            wanted = fairness.LONG if options.long else fairness.QUICK if options.quick else fairness.Sizes()
            measured.fairness = fairness.run(backends, options.store, wanted)
        if "retention" in groups:
            sizes_of = retention.LONG if options.long else retention.QUICK if options.quick else retention.Sizes()
            measured.retention = retention.run(backends, options.store, sizes_of)
        if "sealing" in groups:
            measured.sealing = sealing.run(backends, options.store, sealing.QUICK if options.quick else sealing.Sizes())
        if "service" in groups:
            measured.service = service.run(backends, options.store, service.QUICK if options.quick else service.Sizes())
        if "pages" in groups:
            measured.pages = pages.run(backends, pages.QUICK if options.quick else pages.Sizes())
        found_in = circumstances.QUICK if options.quick else circumstances.Sizes()
        if "jit" in groups:
            measured.circumstances += circumstances.jit(found_in)
        if "storm" in groups:
            measured.circumstances += circumstances.storm(backends, found_in)
        if "pressure" in groups:
            found_in = replace(found_in, pressure=options.seconds or found_in.pressure)
            measured.circumstances += circumstances.pressure(backends, found_in)
        if "idle" in groups:
            measured.circumstances += circumstances.idle(backends, found_in)
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


def _patience(options: argparse.Namespace) -> Patience:
    return Patience(options.patience, options.retakes)


def _groups(options: argparse.Namespace) -> set[str]:
    return {options.only} if options.only else set(GROUPS)


def main() -> int:
    # Also if it was started in the background, where shells ignore interrupts.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _interrupt)
    options = arguments()
    if options.read:
        read(options)
        return 0
    subjects, workloads = chosen(options)
    with peers.folder() as folder:
        backends = Backends(Path(folder))
        if options.against:
            return against(options, backends)
        try:
            measured = measure(options, backends, subjects, workloads)
            show(subjects, measured)
            if options.long and options.only not in ("fairness", "retention"):
                measured.long = longrun.run(backends, options.long_size)
        finally:
            backends.close()
    if options.json:
        found = report.document(
            facts.machine(), measured.servers, subjects, measured.results, measured.bars,
            measured.rows, measured.writes, measured.waiting, measured.long,
        )  # fmt: skip
        found["limits"] = [asdict(each) for each in measured.limits]
        found["rates"] = [asdict(each) for each in measured.rates]
        found["fairness"] = [asdict(each) for each in measured.fairness]
        found["retention"] = [asdict(each) for each in measured.retention]
        found["sealing"] = [asdict(each) for each in measured.sealing]
        found["service"] = [asdict(each) for each in measured.service]
        found["pages"] = [asdict(each) for each in measured.pages]
        found["circumstances"] = [asdict(each) for each in measured.circumstances]
        options.json.write_text(json.dumps(found, indent=2) + "\n")
    if measured.results is not None:
        write(options, subjects, measured.results)
    return 0


if __name__ == "__main__":
    sys.exit(main())
