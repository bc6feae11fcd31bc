"""Mixes that may hurt others: many jobs behind limits, many schedules of one second, a steady load beside an old
transaction, and many waiters for results behind a pooler. Each is smaller than its full size, which ``--long`` has.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from threading import Event, Thread
from typing import Any

import psycopg

from bench import schedules
from bench.depth import claim_seconds
from bench.figures import PG, Figure, Run, percentile
from bench.limits import drain_turns
from bench.peers.backends import Place, PostgresPlace
from bench.peers.bench import Bench, Team
from bench.peers.catalog import BY_NAME
from bench.peers.workloads import old_snapshot, paced
from bench.subjects import PAYLOAD, Ours, new_ids
from holdfast import App
from holdfast.engine.job import JobSpec
from holdfast.features.assembly import open_store
from holdfast.features.limits.model import Rule
from tests.support.pgbouncer import Pooler

KINDS, AT_ONCE = 18, 50
RATE, BATCH, WINDOW, VACUUM_EVERY = 2_000, 20, 5.0, 20.0
FROM = 1_000_000  # the numbers of jobs that are not those of the schedules
POOL = 20


def limited_kinds(run: Run) -> Iterator[Figure]:
    """Jobs of 18 kinds with a limit each: what a drain and a claim of others in the same queue cost beside them."""
    size, drained, claims = run.size(1_800, 86_000, 860_000), run.size(500, 5_000, 20_000), run.size(3, 20, 60)
    for bench in run.ours:
        with ExitStack() as stack:
            ours: list[Ours] = []
            for _ in range(2):
                place = stack.enter_context(bench.place())
                ours.append(Ours(stack.enter_context(closing(open_store(place.url)))))
            beside = ours[1]
            for number in range(KINDS):
                rule = Rule("kind", f"limited-{number}", AT_ONCE)
                beside.store.run(beside.store.limits.set(rule, "bench", beside.tenant))
            for start in range(0, size, 1000):
                specs = [
                    JobSpec(id=job_id, kind=f"limited-{n % KINDS}", payload=PAYLOAD, enqueued_by="b", source_system="b")
                    for n, job_id in enumerate(new_ids.many(min(1000, size - start)))
                ]
                beside.store.run(beside.store.jobs.enqueue(specs, beside.tenant))
            rates: list[list[float]] = [[], []]
            times: list[list[float]] = [[], []]
            for turn in range(2):
                for index in (1, 0) if turn % 2 else (0, 1):
                    ours[index].enqueue(drained // 200 * 200, 200)
                    rates[index].append(drain_turns(ours[index], drained // 200 * 200))
            # Others with a higher priority come first: jobs behind limits must not slow their claims down.
            for each in ours:
                specs = [
                    JobSpec(id=job_id, kind="noop", payload=PAYLOAD, enqueued_by="b", source_system="b", priority=5)
                    for job_id in new_ids.many(claims * 200)
                ]
                each.store.run(each.store.jobs.enqueue(specs, each.tenant))
            for _ in range(claims):
                for index, each in enumerate(ours):
                    times[index].append(claim_seconds(each, 1, 200) * 1e3)
        where = bench.subject.place
        alone, with_them = (statistics.median(each) for each in rates)
        yield Figure("limited-kinds", where, "drain among them", "jobs/s", with_them, "alone", alone)
        one, other = (statistics.median(each) for each in times)
        yield Figure("limited-kinds", where, "claim of 200 others", "ms", other, "alone", one)


def due_schedules(run: Run) -> Iterator[Figure]:
    """Schedules that are all due now, and the pick-up of other jobs meanwhile."""
    size, count = run.size(200, 6_000, 60_000), run.size(20, 60, 200)
    for bench in run.ours:
        with bench.place() as place:
            due_in = 8 + int(count * 0.05) + size // 5_000
            due = time.monotonic() + due_in
            with closing(open_store(place.url)) as store:
                schedules.fill(store, size, due_in)
            with bench.workers(place) as team:
                time.sleep(1.0)
                alone, _ = paced(bench, place, count, 0.05, first=FROM)
                if (left := due - time.monotonic() - 1.0) < 0:
                    raise RuntimeError("the schedules were due too early: the figure would mean nothing")
                time.sleep(left)
                beside, _ = paced(bench, place, count, 0.05, first=FROM + count)
                bench.await_ran(team, size + 2 * count, within=30 + size / 100)
                runs = team.stop()
            ran = [at for number, at in zip(runs.numbers, runs.times, strict=True) if number < FROM]
            took = max(ran) / 1e9 - due
            runs.check_no_twice()
        waits = [sorted(runs.since(each)) for each in (alone, beside)]
        where = bench.subject.place
        yield Figure("due-schedules", where, "fired and run", "1/s", size / took)
        for what, each in (("pick-up p99 of others", waits[1]), ("pick-up p99 before", waits[0])):
            yield Figure("due-schedules", where, what, "ms", percentile(each, 0.99))


def old_transaction(run: Run) -> Iterator[Figure]:
    """2,000 jobs/s of two tenants, alone and beside a transaction that stays open while ``job_state`` is vacuumed."""
    if not run.wants("postgres"):
        return
    quiet, pressed = run.size(5, 15, 75), run.size(10, 60, 1_800)
    bench = Bench(run.backends, BY_NAME["holdfast-pg"])
    with bench.place() as place, closing(App(place.url, name="bench")) as app:
        alone, beside = dict[int, int](), dict[int, int]()
        with bench.workers(place) as team:
            steady = _Steady(bench, app, team)
            steady.produce({}, WINDOW)
            steady.produce(alone, quiet)
            with old_snapshot(place), _vacuuming(place.url):
                began, ended = steady.produce(beside, pressed)
            runs = team.stop()
        runs.check_once(steady.count)
    windows = Counter(int((at - began) / 1e9 / WINDOW) for at in runs.times if began <= at < ended)
    slowest = min(windows[n] for n in range(int((ended - began) / 1e9 / WINDOW))) / WINDOW
    one, other = (percentile(sorted(runs.since(each)), 0.99) for each in (alone, beside))
    yield Figure("old-transaction", PG, f"slowest {WINDOW:g} s", "jobs/s", slowest, "the rate", RATE)
    yield Figure("old-transaction", PG, "pick-up p99", "ms", other, "alone", one)


class _Steady:
    """A producer of so many jobs a second, for two tenants in turn."""

    def __init__(self, bench: Bench, app: App, team: Team) -> None:
        self.bench, self.app, self.team, self.count = bench, app, team, 0
        self.noop = app.job(name="noop")(_unused)

    def produce(self, returned: dict[int, int], seconds: float) -> tuple[int, int]:
        """Enqueue for a while, and wait until all have run. Return when it began and ended to enqueue."""
        first, began = self.count, time.monotonic_ns()
        while (elapsed := (time.monotonic_ns() - began) / 1e9) < seconds:
            if (wait := (self.count - first) / RATE - elapsed) > 0:
                time.sleep(wait)
            with self.app.tenant("ab"[self.count // BATCH % 2]):
                self.app.enqueue_many([self.noop.prepare(self.count + n) for n in range(BATCH)])
            returned |= dict.fromkeys(range(self.count, self.count + BATCH), time.monotonic_ns())
            self.count += BATCH
        ended = time.monotonic_ns()
        self.bench.await_ran(self.team, self.count, within=120)
        return began, ended


async def _unused(number: int) -> None:
    raise NotImplementedError


@contextmanager
def _vacuuming(url: str) -> Iterator[None]:
    stop = Event()

    def vacuum() -> None:
        with psycopg.connect(url, autocommit=True) as connection:
            while not stop.wait(VACUUM_EVERY):
                connection.execute("vacuum analyze holdfast.job_state")

    thread = Thread(target=vacuum, name="bench-vacuum")
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def waiters(run: Run) -> Iterator[Figure]:
    """Coroutines that wait for results through PgBouncer in transaction mode, before a worker has begun."""
    if not run.wants("postgres"):
        return
    count, bench = run.size(50, 1_000, 10_000), Bench(run.backends, BY_NAME["holdfast-pg"])
    with bench.place() as place, Pooler(place.url, "transaction", POOL, max_client_conn=1_000) as pooler:
        received, rate, cpu, runs = asyncio.run(_wait(bench, place, pooler.url(), count))
    began = dict(zip(runs.numbers, runs.times, strict=True))
    late = sorted((at - began[number]) / 1e6 for number, at in received.items())
    yield Figure("waiters", PG, "result p99", "ms", percentile(late, 0.99))
    yield Figure("waiters", PG, "transactions of each", "1/s", rate / count)
    yield Figure("waiters", PG, "server CPU", "of a core", cpu)


async def _wait(bench: Bench, place: Place, url: str, count: int) -> tuple[dict[int, int], float, float, Any]:
    received: dict[int, int] = {}
    assert isinstance(place, PostgresPlace)
    asked = "select xact_commit from pg_stat_database where datname = current_database()"
    app = App(url, name="bench")

    @app.job(name="value")
    async def value(number: int) -> int:
        return number

    async def one(handle: Any, number: int) -> None:
        if await handle.aresult(timeout="5m") != number:
            raise RuntimeError(f"the result of another job than {number}")
        received[number] = time.monotonic_ns()

    handles = await app.aenqueue_many(value.prepare(number) for number in range(count))
    waiting = [asyncio.create_task(one(handle, number)) for number, handle in enumerate(handles)]
    await asyncio.sleep(5.0 + count / 1_000)
    before, cpu, began = place.ask(asked), place.cpu(), time.perf_counter()
    await asyncio.sleep(5.0)
    seconds = time.perf_counter() - began
    rate, used = (place.ask(asked) - before) / seconds, (place.cpu() - cpu) / seconds
    team_of = bench.workers(place)
    team = await asyncio.to_thread(team_of.__enter__)
    try:
        await asyncio.gather(*waiting)
        runs = await asyncio.to_thread(team.stop)
    finally:
        await asyncio.to_thread(team_of.__exit__, None, None, None)
    runs.check_once(count)
    await app.aclose()
    return received, rate, used, runs


MIXES = {
    "limited-kinds": limited_kinds,
    "due-schedules": due_schedules,
    "old-transaction": old_transaction,
    "waiters": waiters,
}
