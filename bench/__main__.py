"""``python -m bench``: ourselves beside plain SQL (group floor) and beside other queues (group peers)."""

from __future__ import annotations

import argparse
import json
import signal
import sys
from pathlib import Path
from typing import Any

from bench import chart, facts, floor, longrun, report
from bench.bars import Bar, bars
from bench.console import note
from bench.peers import run as peers
from bench.peers.backends import Backends
from bench.peers.catalog import BY_NAME, MAIN, OURS, Subject
from bench.peers.workloads import QUICK, WORKLOADS, Sizes
from bench.quiet import Patience
from bench.timing import Row

QUICK_WORKLOADS = "W1,W2,W3,W5"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--only", choices=("floor", "peers"), help="one group instead of both")
    parser.add_argument("--quick", action="store_true", help="fewer jobs, one round, the main peers, W1 W2 W3 W5")
    parser.add_argument("--long", action="store_true", help="also ten million finished jobs, and 10,000 sleeping ones")
    parser.add_argument("--long-size", type=int, default=10_000_000, help="finished jobs for --long")
    parser.add_argument("--store", choices=("sqlite", "postgres", "both"), default="both", help="for the group floor")
    parser.add_argument("--peers", help=f"a,b,c of {', '.join(BY_NAME)}; Holdfast is always there")
    parser.add_argument("--workloads", help=f"a,b,c of {', '.join(WORKLOADS)}")
    parser.add_argument("--rounds", type=int, help="rounds of W1 to W5, medians are shown (3)")
    parser.add_argument("--heavy-rounds", type=int, default=1, help="rounds of W6 to W8 (1)")
    parser.add_argument("--patience", type=float, default=0.0, help="seconds to wait for calm before each measurement")
    parser.add_argument("--retakes", type=int, default=0, help="how often to repeat one that others disturbed")
    parser.add_argument("--read", type=Path, action="append", help="measure nothing: show what --json has written")
    parser.add_argument("--json", type=Path, help="also write everything to this file")
    parser.add_argument("--chart", type=Path, help="also draw W3 and W5 into this SVG file")
    parser.add_argument("--markdown", type=Path, help="also write the table as Markdown")
    return parser.parse_args()


def chosen(options: argparse.Namespace) -> tuple[list[Subject], list[str]]:
    default = ",".join(MAIN if options.quick else BY_NAME)
    names = [*OURS, *(options.peers or default).split(",")]
    workloads = (options.workloads or (QUICK_WORKLOADS if options.quick else ",".join(WORKLOADS))).split(",")
    unknown = [each for each in names if each and each not in BY_NAME]
    unknown += [each for each in workloads if each not in WORKLOADS]
    if unknown:
        sys.exit(f"unknown: {', '.join(unknown)}")
    return [BY_NAME[name] for name in dict.fromkeys(names) if name], workloads


def show(subjects: list[Subject], results: peers.Results, held: list[Bar]) -> None:
    print("\njobs/s; W5 in ms; CPU in µs a job (worker + server) in W3; memory in MiB; × is W3 over ours\n")
    print(report.text(subjects, results))
    for failure in report.failures(results):
        print(f"failed: {failure}")
    print("\nBars")
    for bar in held:
        print(bar.line())


def write(options: argparse.Namespace, subjects: list[Subject], results: peers.Results) -> None:
    if options.chart:
        options.chart.write_text(chart.draw(subjects, results))
    if options.markdown:
        options.markdown.write_text(report.markdown(subjects, results) + "\n")


def _interrupt(number: int, frame: object) -> None:
    raise KeyboardInterrupt


def main() -> int:
    # Also when it was started in the background, where a shell has interrupts ignored.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _interrupt)
    options = arguments()
    rows: list[Row] = []
    results: peers.Results | None = None
    held: list[Bar] = []
    subjects, workloads = chosen(options)
    servers: dict[str, Any] = {}
    long: dict[str, Any] | None = None
    if options.read:
        results = peers.Results()
        for path in options.read:
            results.read(json.loads(path.read_text()))
        subjects = [each for each in BY_NAME.values() if any(each.name == name for name, _ in results.outcomes)]
        show(subjects, results, bars(results))
        write(options, subjects, results)
        return 0
    if options.only != "peers":
        rows = floor.run(options.store, quick=options.quick)
    with peers.folder() as folder:
        backends = Backends(Path(folder))
        try:
            if options.only != "floor":
                results = peers.Results()
                usable = peers.usable(backends, subjects, results)
                servers = facts.servers(backends, usable)
                sizes = QUICK if options.quick else Sizes()
                rounds = options.rounds or (1 if options.quick else 3)
                try:
                    peers.run(
                        backends, usable, workloads, sizes,
                        rounds=rounds, heavy_rounds=options.heavy_rounds, results=results,
                        patience=Patience(options.patience, options.retakes),
                    )  # fmt: skip
                except KeyboardInterrupt:
                    note("interrupted; what was measured so far:")
                held = bars(results)
                show(subjects, results, held)
            if options.long:
                long = longrun.run(backends, options.long_size)
        finally:
            backends.close()
    if options.json:
        found = report.document(facts.machine(), servers, subjects, results, held, rows, long)
        options.json.write_text(json.dumps(found, indent=2) + "\n")
    if results is not None:
        write(options, subjects, results)
    return 0


if __name__ == "__main__":
    sys.exit(main())
