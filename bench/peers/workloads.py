"""The workloads W1 … W9: their sizes, how often they run, and their figures."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import psycopg

from bench.peers.backends import Place
from bench.peers.bench import Bench, Figures, wait_until
from bench.peers.catalog import Subject
from bench.peers.process import DriverFailed, Runs

HELD = 1_000  # sleeping jobs at once, for W8
STEPS = 10  # of each job, for W9


@dataclass(frozen=True)
class Sizes:
    """The number of jobs of each workload; ``quick`` has smaller ones."""

    single: int = 3_000
    bulk: int = 50_000
    drain: int = 20_000
    paced: int = 200
    pause: float = 0.05
    deep: int = 500_000
    first: int = 10_000
    old: int = 100_000
    scripts: int = 1_000


QUICK = Sizes(single=1_000, bulk=20_000, drain=10_000, paced=60, deep=50_000, first=5_000, old=30_000,
              scripts=300)  # fmt: skip


def w1(bench: Bench, sizes: Sizes) -> Figures:
    """Single enqueues, one after another, each committed."""
    with bench.place() as place:
        return bench.enqueue(place, "single", sizes.single)


def w2(bench: Bench, sizes: Sizes) -> Figures:
    """Enqueue with the best bulk API."""
    count = sizes.bulk if bench.subject.bulk else sizes.bulk // 5
    with bench.place() as place:
        return bench.enqueue(place, "bulk", count)


def w3(bench: Bench, sizes: Sizes, processes: int = 1) -> Figures:
    """One worker process runs waiting no-ops until the last is durably settled. Its jobs, finished, are on disk."""
    with bench.place() as place:
        empty = place.size()
        bench.enqueue(place, "bulk", sizes.drain)
        figures, _ = bench.drain(place, sizes.drain, processes)
        return {**figures, "disk_bytes": (place.size() - empty) / sizes.drain}


def w4(bench: Bench, sizes: Sizes) -> Figures:
    """The same with two worker processes."""
    return w3(bench, sizes, processes=2)


def w5(bench: Bench, sizes: Sizes) -> Figures:
    """An idle worker: the time from the return of enqueue to the start of the handler, by one clock."""
    with bench.place() as place:
        with bench.workers(place) as team:
            time.sleep(2.0)  # idle, after its first polls
            returned, _ = paced(bench, place, sizes.paced, sizes.pause)
            bench.await_ran(team, sizes.paced, within=30)
            bench.await_settled(place, sizes.paced, within=30)
            started = team.stop()
        started.check_once(sizes.paced)
        bench.check_settled(place, sizes.paced)
    return quantiles(started.since(returned))


def paced(
    bench: Bench, place: Place, count: int, pause: float, *, first: int = 0, producers: int = 1
) -> tuple[dict[int, int], float]:
    """Enqueue at fixed intervals, the jobs from ``first`` on shared by some processes. Return when the call of each job
    had returned, and the median milliseconds of a call."""
    share = count // producers
    returned = [bench.record() for _ in range(producers)]
    with ExitStack() as stack:
        drivers = [
            stack.enter_context(
                bench.driver(place, "paced", count=share, every=pause, first=first + n * share, record=str(record))
            )
            for n, record in enumerate(returned)
        ]
        for driver in drivers:
            driver.expect("ready", 60)
        for driver in drivers:
            driver.tell("go")
        ended = [driver.expect("finished", 60 + share * max(pause, 0.01) * 3) for driver in drivers]
    runs = Runs(returned)
    return dict(zip(runs.numbers, runs.times, strict=True)), max(each.get("call_ms", 0.0) for each in ended)


def quantiles(waits: list[float]) -> Figures:
    cuts = statistics.quantiles(waits, n=100, method="inclusive")
    return {"p50_ms": cuts[49], "p95_ms": cuts[94], "p99_ms": cuts[98], "max_ms": max(waits)}


def w6(bench: Bench, sizes: Sizes) -> Figures:
    """Very many waiting jobs: the rate of the first ones. Then the worker is stopped, and must not lose a job."""
    with bench.place() as place:
        bench.enqueue(place, "bulk", sizes.deep)
        with bench.workers(place) as team:
            bench.await_ran(team, sizes.first, within=120)
            runs = team.stop()
        runs.check_no_twice()
        _check_rest(bench, place, sizes.deep, len(runs.numbers))
        return {"jobs_s": sizes.first / ((sorted(runs.times)[sizes.first - 1] - team.begun) / 1e9)}


def _check_rest(bench: Bench, place: Place, count: int, ran: int) -> None:
    if bench.subject.settled is not None:
        bench.check_settled(place, ran)
    elif (left := place.ask(bench.subject.left)) != count - ran:
        raise DriverFailed(f"{left} jobs are left instead of {count - ran}")


def w7(bench: Bench, sizes: Sizes) -> Figures:
    """A transaction with an old snapshot is open during the run: is the end as fast as the start?"""
    with bench.place() as place, old_snapshot(place):
        bench.enqueue(place, "bulk", sizes.old)
        figures, runs = bench.drain(place, sizes.old)
        times, tenth = sorted(runs.times), sizes.old // 10
        start = times[0]
        first, last = times[tenth - 1] - start, times[-1] - times[-tenth - 1]
        return {"ratio": first / last, "jobs_s": figures["jobs_s"]}


@contextmanager
def old_snapshot(place: Place) -> Iterator[None]:
    with psycopg.connect(place.url) as connection:
        connection.execute("set transaction isolation level repeatable read")
        connection.execute("select pg_current_snapshot()")
        yield
        connection.rollback()


def w8(bench: Bench, sizes: Sizes) -> Figures:
    """The memory of a worker while a thousand async jobs sleep in it. It must be a fresh process: after W3 it would
    measure W3."""
    with bench.place() as place:
        bench.enqueue(place, "bulk", HELD)
        with bench.workers(place, hold=True) as team:
            bench.await_ran(team, HELD, within=60)
            time.sleep(0.5)
            figures = {"held_mib": team.resident_mib()}
            runs = team.stop()
        runs.check_once(HELD)
        wait_until(lambda: place.ask(bench.subject.left) == 0, 10, "the sleepers were not settled")
        return figures


def w9(bench: Bench, sizes: Sizes) -> Figures:
    """Waiting jobs with ten durable no-op steps each: every step must run once and be recorded once."""
    question = bench.subject.steps
    assert question is not None
    with bench.place() as place:
        bench.enqueue(place, "bulk", sizes.scripts, kind="steps")
        drained, _ = bench.drain(place, sizes.scripts, steps=STEPS)
        written = place.ask(question)
    if written != sizes.scripts * STEPS:
        raise DriverFailed(f"{written} steps are on record instead of {sizes.scripts * STEPS}")
    return {
        "steps_s": drained["jobs_s"] * STEPS,
        "worker_us": drained["worker_us"] / STEPS,
        "server_us": drained["server_us"] / STEPS,
        "rss_mib": drained["rss_mib"],
    }


@dataclass(frozen=True)
class Workload:
    name: str
    title: str
    run: Callable[[Bench, Sizes], Figures]
    heavy: bool = False

    def applies(self, subject: Subject) -> bool:
        if subject.only is not None:
            return self.name in subject.only
        if self.name == "W9":
            return subject.steps is not None
        if self.name == "W6":
            return subject.backend != "redis"
        if self.name == "W7":
            return subject.backend == "postgres"
        if self.name == "W8":
            return subject.holds
        return True


WORKLOADS = {
    each.name: each
    for each in (
        Workload("W1", "single enqueues", w1),
        Workload("W2", "bulk enqueue", w2),
        Workload("W3", "drain, one worker process", w3),
        Workload("W4", "drain, two worker processes", w4),
        Workload("W5", "pick-up latency, idle worker", w5),
        Workload("W6", "first 10,000 of 500,000", w6, heavy=True),
        Workload("W7", "old snapshot: last tenth over first tenth", w7, heavy=True),
        Workload("W8", "memory with 1,000 sleeping jobs", w8, heavy=True),
        Workload("W9", "jobs of ten durable steps", w9),
    )
}
