"""What jobs that wait cost those that do not: thousands at gates, asleep and waiting for events, and none of them.

Both databases get the same work, in turn: 20,000 jobs drained by one worker process, claims of 200, a worker that has
nothing to do. Whoever waits was put to waiting by a worker, not by hand.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace

from bench.console import note
from bench.depth import claim_seconds
from bench.peers.backends import Backends, Place, PostgresPlace
from bench.peers.bench import Bench, Figures, wait_until
from bench.peers.catalog import BY_NAME, OURS, Subject
from bench.subjects import Ours
from holdfast.stores.open import open_store

BATCH = 200
# Asked by the indexes of what can be taken and what is held, so that asking costs the same beside those that wait.
OPEN = (
    "select (select count(*) from {schema}job_state where state = 'queued' and due_at is null)"
    " + (select count(*) from {schema}job_state where lease is not null)"
)
WAITING = "select count(*) from {schema}job_state where state in ('waiting_for_approval', 'retry_waiting')"


@dataclass(frozen=True)
class Sizes:
    """``each`` wait for people, for a time and for an event; ``rest`` is how long the idle worker is watched."""

    each: int = 10_000
    drain: int = 20_000
    claims: int = 12
    rounds: int = 7
    rest: float = 6.0  # the duties have come round by then


QUICK = Sizes(each=2_000, drain=5_000, rounds=3, rest=2.0)


@dataclass(frozen=True)
class Beside:
    """The medians of one thing without and beside those that wait. ``ratio`` is a cost: 1.0 is none."""

    store: str
    what: str
    unit: str
    without: float
    beside: float
    ratio: float

    def line(self) -> str:
        figures = f"{self.without:,.1f} without, {self.beside:,.1f} beside them {self.unit}"
        return f"  {self.store:10}  {self.what:24} {figures:56} cost {self.ratio:.2f}"


def measure(backends: Backends, subject: Subject, sizes: Sizes) -> list[Beside]:
    schema = "holdfast." if subject.backend == "postgres" else ""
    bench = Bench(backends, replace(subject, left=OPEN.format(schema=schema)))
    rounds: dict[str, list[Figures]] = {"without": [], "beside": []}
    with ExitStack() as stack:
        places = {name: stack.enter_context(bench.place()) for name in rounds}
        _put_to_wait(bench, places["beside"], sizes.each * 3, WAITING.format(schema=schema))
        for turn in range(sizes.rounds):
            # Who comes first changes: what the one leaves to the disk is not always the other's to bear.
            for name in sorted(rounds, reverse=bool(turn % 2)):
                rounds[name].append(_round(bench, places[name], sizes))
            pair = " | ".join(f"{name} {_shown(found[-1])}" for name, found in rounds.items())
            note(f"{subject.name} round {turn + 1}: {pair}")

    def row(what: str, unit: str, key: str, cost: Callable[[float, float], float]) -> Beside:
        without, beside = (statistics.median(each[key] for each in rounds[name]) for name in ("without", "beside"))
        return Beside(subject.place, what, unit, without, beside, cost(without, beside))

    return [
        row(f"drain of {sizes.drain:,}", "jobs/s", "jobs_s", lambda without, beside: without / beside),
        row(f"claim of {BATCH}", "ms", "claim_ms", lambda without, beside: beside / without),
        row("memory after the drain", "MiB", "rss_mib", lambda without, beside: beside / without),
        row("memory of an idle worker", "MiB", "idle_mib", lambda without, beside: beside / without),
    ]


def _put_to_wait(bench: Bench, place: Place, count: int, waiting: str) -> None:
    note(f"{bench.subject.name}: {count:,} jobs begin to wait")
    bench.enqueue(place, "bulk", count, kind="waits")
    with bench.workers(place) as team:
        bench.await_ran(team, count, within=60 + count / 20)
        wait_until(lambda: place.ask(waiting) == count, 60 + count / 20, "not all jobs wait")
        runs = team.stop()
    runs.check_once(count)
    if isinstance(place, PostgresPlace):
        place.connection.execute("vacuum analyze")


def _round(bench: Bench, place: Place, sizes: Sizes) -> Figures:
    bench.enqueue(place, "bulk", sizes.drain)
    drained, _ = bench.drain(place, sizes.drain)
    with bench.workers(place) as team:
        time.sleep(sizes.rest)
        idle = team.resident_mib()
        team.stop()
    return {
        "jobs_s": drained["jobs_s"],
        "claim_ms": _claim_ms(place, sizes.claims),
        "rss_mib": drained["rss_mib"],
        "idle_mib": idle,
    }


def _claim_ms(place: Place, claims: int) -> float:
    store = open_store(place.url)
    try:
        ours = Ours(store)
        ours.enqueue(claims * BATCH, BATCH)
        place.settle_down()
        return claim_seconds(ours, claims, BATCH) * 1e3
    finally:
        store.close()


def _shown(figures: Figures) -> str:
    return "  ".join(f"{key} {value:,.1f}" for key, value in figures.items())


def run(backends: Backends, store: str, *, quick: bool) -> list[Beside]:
    sizes = QUICK if quick else Sizes()
    found: list[Beside] = []
    print(f"\nBeside {sizes.each:,} jobs at gates, {sizes.each:,} asleep and {sizes.each:,} waiting for events")
    for subject in (BY_NAME[name] for name in OURS):
        if store in (subject.backend, "both"):
            for row in measure(backends, subject, sizes):
                print(row.line(), flush=True)
                found.append(row)
    return found
