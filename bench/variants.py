"""Drains that differ from the plain one in one thing (``variants``), and by more worker processes (``workers``)."""

from __future__ import annotations

import time
from contextlib import closing
from functools import partial
from typing import Any

from bench.figures import Figure, Rounds, Run
from bench.peers.bench import Bench, Figures
from bench.peers.process import Runs
from holdfast import App

PLAIN = "plain"
VARIANTS: dict[str, dict[str, Any]] = {
    PLAIN: {},
    "one in ten fails once": {"kind": "flaky"},
    "threads": {"kind": "threads"},
    "one step": {"kind": "steps", "steps": 1},
    "ten steps": {"kind": "steps", "steps": 10},
    "8 kB payload": {"kind": "large"},
    "tags and keys": {"kind": "tagged"},
    "random priorities": {"kind": "priorities"},
    "20 queues": {"kind": "queues"},
    "50 tenants": {"kind": "tenants"},
}
PROCESSES = (1, 2, 4, 8)
CONTENDING = 100  # jobs at once in each of the workers that contend
CURVE = ("holdfast-pg", "graphile", "holdfast-sqlite")


def drain(
    bench: Bench, count: int, processes: int = 1, *, kind: str = "noop", steps: int = 1, apps: int = 1
) -> Figures:
    """Enqueue and drain in a fresh database: each job, and each step, must have run once."""
    with bench.place() as place:
        empty = place.size()
        bench.enqueue(place, "bulk", count, kind=kind)
        options = {"steps": steps} if kind == "steps" else {}
        figures, runs = bench.drain(place, count, processes, kind=kind, **options)
        return {**figures, "steady_s": _steady(runs), "disk_bytes": (place.size() - empty) / count}


def _steady(runs: Runs) -> float:
    """The rate from the second tenth to the ninth: without the start of the processes and their end."""
    times = sorted(runs.times)
    first, last = len(times) // 10, len(times) * 9 // 10
    return (last - first) / max(1, times[last] - times[first]) * 1e9


def contend(bench: Bench, count: int, apps: int) -> Figures:
    """Eight processes of workers that are connected and wait behind a pause begin at the same moment."""
    with bench.place() as place, closing(App(place.url, name="bench")) as app:
        bench.enqueue(place, "bulk", count)
        app.pauses.set(queue="default", reason="until all workers have started")
        with bench.workers(place, 8, apps=apps, concurrency=CONTENDING) as team:
            time.sleep(2.0 + apps / 4)
            worker, server = team.cpu(), place.cpu()
            app.pauses.remove(queue="default")
            bench.await_ran(team, count, within=60)
            bench.await_settled(place, count, within=60)
            cpu = (team.cpu() - worker if bench.subject.backend == "sqlite" else place.cpu() - server) / count * 1e6
            runs = team.stop()
        runs.check_once(count)
    return {"steady_s": _steady(runs), "cpu_us": cpu}


def variants(run: Run) -> list[Figure]:
    """The rate of each variant as a share of the plain drain."""
    found, rounds, count = [], Rounds(), run.size(500, 8_000, 20_000)
    for _ in range(run.rounds):
        for bench in run.ours:
            for name, options in VARIANTS.items():
                few = count // 5 if name == "ten steps" else count
                rounds.take(f"{bench.subject.place} {name}", partial(drain, bench, few, **options))
    for bench in run.ours:
        place = bench.subject.place
        for name in VARIANTS:
            if name != PLAIN:
                found += rounds.figure(
                    "variants", place, name, "jobs/s", f"{place} {name} jobs_s", PLAIN, f"{place} {PLAIN} jobs_s"
                )
            for key, what in (("wal_bytes", "WAL"), ("disk_bytes", "disk")):
                if key == "disk_bytes" or bench.subject.backend == "postgres":
                    found += rounds.figure("variants", place, f"{name}, {what}", "B/job", f"{place} {name} {key}")
    return found


def workers(run: Run) -> list[Figure]:
    """The rate of 1 to 8 worker processes, and of 64 workers in 8 processes that contend for claims."""
    found, rounds, count = [], Rounds(), run.size(1_000, 20_000, 100_000)
    benches = [each for each in run.benches(*CURVE) if not run.quick or each.subject.runtime == "project"]
    for _ in range(run.rounds):
        for bench in benches:
            name = bench.subject.name
            for processes in PROCESSES:
                rounds.take(f"{name} {processes}", partial(drain, bench, count, processes))
            if bench.subject.runtime == "project":
                for apps in (1, 2 if run.quick else 8):
                    rounds.take(f"{name} {8 * apps} contending", partial(contend, bench, count // 2, apps))
    for bench in benches:
        name, place = bench.subject.name, bench.subject.place
        if bench.subject.runtime != "project":
            continue
        for processes, than in ((2, 1), (4, 1), (4, 2), (8, 1), (8, 4)):
            what, other = f"{processes} workers", "one" if than == 1 else f"{than} workers"
            found += rounds.figure(
                "workers", place, what, "jobs/s", f"{name} {processes} steady_s", other, f"{name} {than} steady_s"
            )
        for processes in PROCESSES if name == "holdfast-pg" else ():
            found += rounds.figure(
                "workers", place, f"{processes} workers" if processes > 1 else "1 worker", "jobs/s",
                f"{name} {processes} steady_s", "graphile-worker", f"graphile {processes} steady_s",
            )  # fmt: skip
        for what, key, unit in (("", "steady_s", "jobs/s"), (", CPU", "cpu_us", "µs/job")):
            found += rounds.figure(
                "workers", place, f"64 contending{what}", unit,
                f"{name} 64 contending {key}", "8 contending", f"{name} 8 contending {key}",
            )  # fmt: skip
    return found
