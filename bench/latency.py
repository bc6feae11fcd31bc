"""The time from enqueue to the start of the handler, by the gap between jobs, and its legs (``latency``).

The legs are observed from outside: the call of enqueue with its commit, the notification at a listener of our own (on
PostgreSQL), the time of the claim in the database, and the handler's first line. ``closed-loop`` has producers and
workers at the same time, and 1 ms of work in each job.
"""

from __future__ import annotations

import statistics
import threading
import time
from functools import partial

import psycopg

from bench.figures import LITE, PG, Figure, Rounds, Run
from bench.peers.backends import Place, PostgresPlace, SqlitePlace
from bench.peers.bench import Bench, Figures
from bench.peers.catalog import BY_NAME
from bench.peers.workloads import paced, quantiles

GAPS = (50, 10, 3)  # ms
RATE = 800  # jobs a second, for the time in the system
CLAIMED = {
    "postgres": "select (j.payload ->> 'number')::int, (extract(epoch from s.started_at) * 1000000)::bigint * 1000"
    " from holdfast.job j join holdfast.job_state s on s.id = j.id",
    "sqlite": "select json_extract(j.payload, '$.number'), s.started_at * 1000"
    " from holdfast_job j join holdfast_job_state s on s.id = j.id",
}
PEERS = {"postgres": ("holdfast-pg", "pgqueuer", "graphile"), "sqlite": ("holdfast-sqlite", "huey")}


class Listener:
    """A listener beside the worker's: when each notification arrived, by the clock of the drivers."""

    def __init__(self, place: Place, channel: str) -> None:
        self.arrived: list[int] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._listen, args=(place.url, channel))
        if isinstance(place, PostgresPlace):
            self._thread.start()

    def _listen(self, url: str, channel: str) -> None:
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(f"listen {channel}".encode())
            while not self._stop.is_set():
                for _ in connection.notifies(timeout=0.2, stop_after=1):
                    self.arrived.append(time.monotonic_ns())

    def close(self) -> list[int]:
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join()
        return self.arrived


def _claimed(bench: Bench, place: Place) -> dict[int, int]:
    """When the claim of each job was, by the clock of the drivers."""
    offset = time.time_ns() - time.monotonic_ns()
    assert isinstance(place, (PostgresPlace, SqlitePlace))
    return {number: at - offset for number, at in place.rows(CLAIMED[bench.subject.backend])}


def pick_ups(bench: Bench, count: int) -> Figures:
    """One idle worker; jobs every 50, 10 and 3 ms. Returns the quantiles of each gap, and the legs at the widest."""
    found: Figures = {}
    ours = bench.subject.runtime == "project"
    with bench.place() as place:
        with bench.workers(place) as team:
            time.sleep(2.0)
            all_returned: dict[int, dict[int, int]] = {}
            calls: dict[int, float] = {}
            arrived: list[int] = []
            for index, gap in enumerate(GAPS):
                listener = Listener(place, "holdfast") if gap == GAPS[0] and ours else None
                all_returned[gap], calls[gap] = paced(bench, place, count, gap / 1e3, first=index * count)
                bench.await_ran(team, (index + 1) * count, within=30)
                arrived = listener.close() if listener is not None else arrived
            bench.await_settled(place, count * len(GAPS), within=30)
            started = team.stop()
        started.check_once(count * len(GAPS))
        claimed = _claimed(bench, place) if ours else {}
    for gap, returned in all_returned.items():
        found |= {f"{gap} {key}": value for key, value in quantiles(started.since(returned)).items()}
    if ours:
        returned = all_returned[GAPS[0]]
        begun = dict(zip(started.numbers, started.times, strict=True))
        first = [
            (at - sent) / 1e6
            for number, sent in returned.items()
            # Not every job is announced: one that came later belongs to another job.
            if (at := min((each for each in arrived if each >= sent - 2_000_000), default=None)) and at < begun[number]
        ]
        found["leg commit"] = calls[GAPS[0]]
        if first:
            found["leg notify"] = statistics.median(first)
        found["leg wake"] = statistics.median((claimed[n] - at) / 1e6 for n, at in returned.items())
        found["leg exchange + start"] = statistics.median((begun[n] - claimed[n]) / 1e6 for n in returned)
    return found


def latency(run: Run) -> list[Figure]:
    found, rounds, count = list[Figure](), Rounds(), run.size(20, 150, 1_000)
    for _ in range(run.rounds):
        for names in PEERS.values():
            for bench in run.benches(*names[: 1 if run.quick else 3]):
                rounds.take(bench.subject.name, partial(pick_ups, bench, count))
    for place, (ours, *peers) in zip((PG, LITE), PEERS.values(), strict=True):
        for gap in GAPS:
            for cut in ("p50", "p95", "p99"):
                name = f"{gap} {cut}_ms"
                found += rounds.figure("latency", place, f"every {gap} ms, {cut}", "ms", f"{ours} {name}")
                for peer in peers if cut != "p95" else ():
                    found += rounds.figure(
                        "latency",
                        place,
                        f"every {gap} ms, {cut}",
                        "ms",
                        f"{ours} {name}",
                        BY_NAME[peer].title,
                        f"{peer} {name}",
                    )
        for leg in ("commit", "notify", "wake", "exchange + start"):
            found += rounds.figure("latency", place, f"leg: {leg}", "ms", f"{ours} leg {leg}")
    return found


def _loop(bench: Bench, count: int, rate: float | None) -> Figures:
    """Two producers and one worker at the same time; without a rate, as fast as they can."""
    pause = 2 / rate if rate else 0.0
    with bench.place() as place:
        with bench.workers(place, work_ms=1) as team:
            time.sleep(1.0)
            began = time.monotonic_ns()
            returned, _ = paced(bench, place, count, pause, producers=2)
            bench.await_ran(team, count, within=60)
            bench.await_settled(place, count, within=60)
            ended = team.stop()
        ended.check_once(count)
    if rate:
        return quantiles(ended.since(returned))
    first = min(returned.values(), default=began)
    return {"jobs_s": count / ((max(ended.times) - first) / 1e9)}


def closed_loop(run: Run) -> list[Figure]:
    found, rounds, count = list[Figure](), Rounds(), run.size(400, 5_000, 50_000)
    for _ in range(run.rounds):
        for names in PEERS.values():
            for bench in run.benches(*names[: 1 if run.quick else 3]):
                rounds.take(f"{bench.subject.name} flat out", partial(_loop, bench, count, None))
                rounds.take(f"{bench.subject.name} at {RATE}", partial(_loop, bench, count, RATE))
    for place, (ours, *peers) in zip((PG, LITE), PEERS.values(), strict=True):
        for what, key, unit in (
            ("flat out", "flat out jobs_s", "jobs/s"),
            (f"at {RATE}/s, p50", f"at {RATE} p50_ms", "ms"),
            (f"at {RATE}/s, p99", f"at {RATE} p99_ms", "ms"),
        ):
            found += rounds.figure("closed-loop", place, what, unit, f"{ours} {key}")
            for peer in peers:
                found += rounds.figure(
                    "closed-loop", place, what, unit, f"{ours} {key}", BY_NAME[peer].title, f"{peer} {key}"
                )
    return found
