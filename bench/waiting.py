"""The cost of waiting jobs for others: thousands that wait for approvals, sleep or wait for events, compared with none.

Two databases get the same work alternately: 20,000 jobs drained by one worker process, an idle worker, and claims of
200. A worker brought the waiting jobs into their state, not SQL.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace

from bench.console import note
from bench.depth import claim_seconds
from bench.peers.backends import Backends, Place, PostgresPlace
from bench.peers.bench import Bench, Figures, wait_until
from bench.peers.catalog import BY_NAME, OURS, Subject
from bench.subjects import Ours
from holdfast.features.assembly import open_store

BATCH = 200
# These queries use the indexes of claimable and claimed jobs, so that they cost the same beside waiting jobs.
OPEN = (
    "select (select count(*) from {schema}job_state where state = 'queued' and due_at is null)"
    " + (select count(*) from {schema}job_state where lease is not null)"
)
WAITING = "select count(*) from {schema}job_state where state in ('waiting_for_approval', 'retry_waiting')"


@dataclass(frozen=True)
class Sizes:
    """``each`` jobs wait for approval, for a time and for an event; ``rest`` is how long the idle worker is
    observed."""

    each: int = 10_000
    drain: int = 20_000
    rounds: int = 7
    claims: int = 100
    rest: float = 6.0  # until all maintenance tasks have run


QUICK = Sizes(each=2_000, drain=5_000, rounds=3, claims=30, rest=2.0)


@dataclass(frozen=True)
class Beside:
    """The medians of one measurement without and with waiting jobs. ``ratio`` is a cost: 1.0 is none."""

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
    schema = "holdfast." if subject.backend == "postgres" else "holdfast_"
    bench = Bench(backends, replace(subject, left=OPEN.format(schema=schema)))
    rounds: list[list[Figures]] = [[], []]
    with bench.place() as without, bench.place() as beside:
        _put_to_wait(bench, beside, sizes.each * 3, WAITING.format(schema=schema))
        for turn in range(sizes.rounds):
            for index in _in_turn(turn):
                figures = _round(bench, (without, beside)[index], sizes)
                rounds[index].append(figures)
                shown = "  ".join(f"{key} {value:,.2f}" for key, value in figures.items())
                note(f"{subject.name} round {turn + 1} {('without', 'beside')[index]:8} {shown}")
        claims = _claims((without, beside), sizes.claims)

    def row(what: str, unit: str, one: float, other: float, *, rate: bool = False) -> Beside:
        return Beside(subject.place, what, unit, one, other, one / other if rate else other / one)

    def median(key: str) -> list[float]:
        return [statistics.median(each[key] for each in found) for found in rounds]

    return [
        row(f"drain of {sizes.drain:,}", "jobs/s", *median("jobs_s"), rate=True),
        row("processor time of that", "µs a job", *median("cpu_us")),
        row(f"claim of {BATCH}", "ms", *claims),
        row("memory after the drain", "MiB", *median("rss_mib")),
        row("memory of an idle worker", "MiB", *median("idle_mib")),
    ]


def _in_turn(turn: int) -> tuple[int, int]:
    """Alternate the order, because one measurement may leave writes to the disk that delay the next."""
    return (1, 0) if turn % 2 else (0, 1)


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
        "cpu_us": drained["worker_us"] + drained["server_us"],
        "rss_mib": drained["rss_mib"],
        "idle_mib": idle,
    }


def _claims(places: Sequence[Place], count: int) -> list[float]:
    """Return the median milliseconds of a claim in each database."""
    times: list[list[float]] = [[] for _ in places]
    with ExitStack() as stack:
        ours = [Ours(stack.enter_context(closing(open_store(place.url)))) for place in places]
        for each in ours:
            each.enqueue(count * BATCH, BATCH)
        for place in places:
            place.settle_down()
        for turn in range(count):
            for index in _in_turn(turn):
                times[index].append(claim_seconds(ours[index], 1, BATCH) * 1e3)
    return [statistics.median(each) for each in times]


def run(backends: Backends, store: str, sizes: Sizes) -> list[Beside]:
    found: list[Beside] = []
    print(f"\nBeside {sizes.each:,} jobs at approvals, {sizes.each:,} asleep and {sizes.each:,} waiting for events")
    for subject in (BY_NAME[name] for name in OURS):
        if store in (subject.backend, "both"):
            for row in measure(backends, subject, sizes):
                print(row.line(), flush=True)
                found.append(row)
    return found
