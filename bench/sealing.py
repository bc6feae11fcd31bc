"""The cost of sealing the ledger: a worker that drains a queue and seals, and one that does not seal.

Two databases that differ in nothing else, alternately. The worker runs its maintenance tasks more often than usual, so
that a short drain has its share of them; the share of time that sealing may take is unchanged.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from contextlib import ExitStack, closing
from dataclasses import dataclass

from bench.console import note
from bench.peers.backends import Backends, Place
from bench.peers.catalog import BY_NAME, OURS, Subject
from bench.subjects import Ours
from bench.waiting import Beside
from holdfast import App, State
from holdfast.app.internals import session_of

WITHOUT, WITH = "without", "with"


@dataclass(frozen=True)
class Sizes:
    drain: int = 30_000
    rounds: int = 5


QUICK = Sizes(drain=10_000, rounds=3)


def _drain(app: App, place: Place, count: int, sealing: bool) -> tuple[float, float]:
    """Return the jobs per second, and the microseconds of CPU time per job, including the server's."""

    async def work() -> tuple[float, float]:
        used, began = time.process_time() + place.cpu(), time.perf_counter()
        await app.worker(concurrency=200, sweep_every=0.25, burst=True, sealing=sealing).run()
        took, spent = time.perf_counter() - began, time.process_time() + place.cpu() - used
        await session_of(app).store.leave_loop()
        return count / took, spent / count * 1e6

    return asyncio.run(work())


def measure(backends: Backends, subject: Subject, sizes: Sizes) -> list[Beside]:
    rates: dict[str, list[float]] = {WITHOUT: [], WITH: []}
    spent: dict[str, list[float]] = {WITHOUT: [], WITH: []}
    with ExitStack() as stack:
        places: dict[str, Place] = {}
        apps: dict[str, App] = {}
        for name in rates:
            places[name] = stack.enter_context(backends.fresh(subject.backend, "sqlite:///"))
            apps[name] = stack.enter_context(closing(App(places[name].url, name="bench")))
            apps[name].migrate()
            apps[name].job(name="noop")(_noop)
        for turn in range(sizes.rounds):
            for name in sorted(rates, reverse=bool(turn % 2)):
                Ours(session_of(apps[name]).store).enqueue(sizes.drain, 100)
                places[name].settle_down()
                rate, used = _drain(apps[name], places[name], sizes.drain, name == WITH)
                rates[name].append(rate)
                spent[name].append(used)
            note(f"{subject.name} round {turn + 1} " + "  ".join(f"{k} {v[-1]:,.0f}" for k, v in rates.items()))
        for app in apps.values():
            if (
                session_of(app).store.run(session_of(app).store.jobs.counts("bench")).get(State.SUCCEEDED)
                != sizes.drain * sizes.rounds
            ):
                raise RuntimeError("not all have succeeded: the figure would mean nothing")
        report = apps[WITH].audit.verify()
        if not report.ok or not report.seals:
            raise RuntimeError("nothing was sealed, or not well: the figure would mean nothing")
        note(f"{report.events:,} of {3 * sizes.drain * sizes.rounds:,} events sealed while it lasted")
    base, other = (statistics.median(each) for each in rates.values())
    few, more = (statistics.median(each) for each in spent.values())
    return [
        Beside(subject.place, "drain while sealing", "jobs/s", base, other, base / other),
        Beside(subject.place, "processor time of that", "µs a job", few, more, more / max(few, 1e-9)),
    ]


async def _noop(to: str, invoice: int) -> None: ...


def run(backends: Backends, store: str, sizes: Sizes) -> list[Beside]:
    found: list[Beside] = []
    print("\nWhile the ledger is sealed")
    for subject in (BY_NAME[name] for name in OURS):
        if store in (subject.backend, "both"):
            for row in measure(backends, subject, sizes):
                print(row.line(), flush=True)
                found.append(row)
    return found
