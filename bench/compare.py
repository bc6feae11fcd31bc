"""Compare this checkout with another one, as a ratio of costs: ``python -m bench --against ../before``.

Both run W1, W2, W3 and W5 on the same server in alternating rounds, each with its own driver and source. Other programs
on the machine disturb wall time; they disturb the CPU time of the client and of the server less. Shown are the median
of the rounds' ratios, because the speed of a shared machine changes from minute to minute, and the ratio of the least
disturbed rounds. 1.00 is the same cost, 1.03 is 3 % more.
"""

from __future__ import annotations

import compileall
import runpy
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from bench.console import note
from bench.peers.backends import Backends
from bench.peers.bench import Bench, Figures
from bench.peers.catalog import BY_NAME, OURS, Subject
from bench.peers.workloads import Sizes, w5

QUICK_ROUNDS, ROUNDS = 3, 12


def _subject(root: Path, name: str) -> Subject:
    """What a checkout says about itself: its queries name its own tables."""
    return cast(Subject, runpy.run_path(str(root / "bench" / "peers" / "catalog.py"))["BY_NAME"][name])


class Checkout(Bench):
    """The benchmarks of one source tree: its own driver, and its own ``src`` before the installed package."""

    def __init__(self, backends: Backends, name: str, root: Path) -> None:
        super().__init__(backends, _subject(root, name))
        # Some modules are imported while the clock runs; without this, an edited checkout would also compile them.
        compileall.compile_dir(root / "src", quiet=2)
        self._driver = root / "bench" / "peers" / "holdfast" / "driver.py"
        self._path = f"{root / 'src'}:{root / 'bench' / 'peers' / 'link'}"

    def command(self) -> list[str]:
        return [sys.executable, str(self._driver)]

    def variables(self) -> dict[str, str]:
        return {**super().variables(), "PYTHONPATH": self._path}


def _enqueue(verb: str, count: int, bench: Bench) -> Figures:
    with bench.place() as place:
        done = bench.enqueue(place, verb, count)
        return {"wall": count / done["jobs_s"], "server": done["server_us"] * count / 1e6}


def _drain(count: int, bench: Bench) -> Figures:
    with bench.place() as place:
        bench.enqueue(place, "bulk", count)
        drained, _ = bench.drain(place, count)
        return {"wall": 1 / drained["jobs_s"], "client": drained["worker_us"], "server": drained["server_us"]}


def _latency(sizes: Sizes, bench: Bench) -> Figures:
    return {"p50": w5(bench, sizes)["p50_ms"]}


@dataclass(frozen=True)
class Cost:
    """One figure of one workload: the cost of this checkout divided by that of the other."""

    store: str
    workload: str
    figure: str
    median: float
    least: float

    def line(self) -> str:
        return f"  {self.store:10}  {self.workload}  {self.figure:7} median {self.median:.3f}  least {self.least:.3f}"


def run(backends: Backends, store: str, other: Path, sizes: Sizes, rounds: int, workloads: Sequence[str]) -> list[Cost]:
    here = Path(__file__).parents[1]
    works: dict[str, Callable[[Bench], Figures]] = {
        "W1": lambda bench: _enqueue("single", sizes.single, bench),
        "W2": lambda bench: _enqueue("bulk", sizes.bulk, bench),
        "W3": lambda bench: _drain(sizes.drain, bench),
        "W5": lambda bench: _latency(sizes, bench),
    }
    found = []
    for name in OURS:
        if store not in ("both", BY_NAME[name].backend):
            continue
        pair = Checkout(backends, name, other), Checkout(backends, name, here)
        for workload in workloads:
            taken: list[list[Figures]] = [[], []]
            for turn in range(rounds):
                for index in (1, 0) if turn % 2 else (0, 1):
                    taken[index].append(works[workload](pair[index]))
            found += [
                _cost(BY_NAME[name].place, workload, key, *([each[key] for each in rows] for rows in taken))
                for key in taken[0][0]
            ]
            for cost in found[-len(taken[0][0]) :]:
                note(cost.line())
    return found


def _cost(store: str, workload: str, figure: str, before: list[float], now: list[float]) -> Cost:
    if not all(before):
        return Cost(store, workload, figure, float("nan"), float("nan"))
    ratios = [after / earlier for earlier, after in zip(before, now, strict=True)]
    return Cost(store, workload, figure, statistics.median(ratios), min(now) / min(before))
