"""The cost of retention for a concurrent drain, and the cost of removing jobs.

One database has many finished jobs, all past their retention. One connection drains fresh jobs in exchanges of 100
(settle and claim in one), in rounds: alone, and beside a process that sweeps as a worker does, with pauses between its
slices. At the end some jobs are removed without pauses, which gives the cost per job, and a drain in an empty database
shows the cost of old rows without a sweep. On PostgreSQL, a purge by rows is compared with dropping a whole partition.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import statistics
import time
from contextlib import ExitStack, closing
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.synchronize import Event

import psycopg

from bench.console import note
from bench.limits import BATCH, drain_turns
from bench.peers.backends import Backends, Place, PostgresPlace
from bench.peers.catalog import BY_NAME, OURS, Subject
from bench.subjects import Ours
from bench.waiting import Beside
from holdfast.engine.job import EVERY_TENANT
from holdfast.features.assembly import open_store
from holdfast.features.retention.model import RetentionRule
from holdfast.worker.retention import sweep

PER_JOB = "µs of the server per job"
SLICE = 500_000

# A finished job as a worker leaves it: the job, its state, and three rows of the ledger. A setting of the owner makes
# the triggers allow it. Ids increase with the number, as the ids of real jobs increase with time.
FILL = (
    "insert into holdfast.job (id, tenant, kind, enqueued_by, source_system, created_at)"
    " select {id}, 'default', 'noop', 'bench', 'bench', clock_timestamp() - interval '1 day'"
    " from generate_series({first}, {last}) n",
    "insert into holdfast.job_state (id, tenant, kind, queue, state, priority, position, attempt, max_attempts,"
    " max_crashes, started_at, finished_at)"
    " select {id}, 'default', 'noop', 'default', 'succeeded', 0, n, 1, 4, 3, clock_timestamp(), clock_timestamp()"
    " from generate_series({first}, {last}) n",
    "insert into holdfast.event (job_id, tenant, kind, type, from_state, to_state, attempt, at, actor)"
    " select {id}, 'default', 'noop', v.type, v.f, v.t, v.a, clock_timestamp() - interval '1 day', 'bench'"
    " from generate_series({first}, {last}) n, (values ('enqueue', null, 'queued', 0),"
    " ('claim', 'queued', 'in_progress', 1), ('settle', 'in_progress', 'succeeded', 1)) v(type, f, t, a)",
)
IDENTIFIER = "('01900000-' || lpad(to_hex(n >> 16), 4, '0') || '-7000-8000-' || lpad(to_hex(n), 12, '0'))::uuid"


@dataclass(frozen=True)
class Sizes:
    """``old`` finished jobs, drains of ``drain`` fresh ones; ``flat_out`` jobs are removed at the end without
    pauses."""

    old: int = 200_000
    drain: int = 20_000
    rounds: int = 5
    flat_out: int = 20_000


QUICK = Sizes(old=20_000, drain=5_000, rounds=3, flat_out=5_000)
LONG = Sizes(old=10_000_000, drain=100_000, rounds=9, flat_out=1_000_000)


def fill(place: Place, size: int, identifier: str = IDENTIFIER) -> None:
    with psycopg.connect(place.url, autocommit=True) as connection:
        connection.execute("set session_replication_role = replica")
        connection.execute("set synchronous_commit = off")
        for first in range(1, size + 1, SLICE):
            last = min(first + SLICE - 1, size)
            for statement in FILL:
                text = statement.format(id=identifier, first=first, last=last)
                connection.execute(text.encode())
            if last % 1_000_000 == 0 or last == size:
                note(f"{last:,} finished jobs")
        connection.execute("vacuum analyze")


def _sweeper(url: str, ready: Event) -> None:
    """Sweep until it is killed, as a worker may be at any time."""

    async def serve() -> None:
        with closing(open_store(url)) as store:
            ready.set()
            while True:
                await sweep(store, tenant=EVERY_TENANT)
                await asyncio.sleep(0.05)

    asyncio.run(serve())


def _age(ours: Ours, place: Place, subject: Subject, count: int) -> None:
    """Create finished jobs, and set a clock far after their end."""
    if subject.backend == "postgres":
        fill(place, count)
    else:
        for _ in range(0, count, 10_000):
            ours.enqueue(min(count, 10_000), BATCH)
            ours.drain(min(count, 10_000), BATCH)
    store = ours.store
    store.run(store.clock.set(timedelta(days=40), None))
    # Jobs that drains finish meanwhile are younger, and stay.
    store.run(store.retention.set(RetentionRule.of(purge_after="30d"), "bench", EVERY_TENANT))
    _count(ours)
    store.run(store.leases.renew(ours.lease, 86_400.0, EVERY_TENANT))


def _count(ours: Ours) -> None:
    """Count the usage of all events, as workers do all the time: a sweeper with a backlog of events sweeps nothing."""
    while ours.store.run(ours.store.usage.count(10_000)):
        pass


def _flat_out(ours: Ours, most: int) -> tuple[int, float]:
    """Return the number of removed jobs, and the seconds."""
    store, run, done, began = ours.store, ours.store.run, 0, time.perf_counter()
    while done < most:
        run(store.usage.count())
        swept = run(store.retention.sweep())
        if swept.action == "idle":
            break
        done += swept.done if swept.action == "purge" else 0
    return done, time.perf_counter() - began


def measure(backends: Backends, subject: Subject, sizes: Sizes) -> list[Beside]:
    rates: dict[str, list[float]] = {"empty": [], "alone": [], "beside": []}
    context = multiprocessing.get_context("spawn")
    went, seconds = 0, 0.0
    with ExitStack() as stack:
        places = [stack.enter_context(backends.fresh(subject.backend, "sqlite:///")) for _ in range(2)]
        ours: list[Ours] = []
        for place in places:
            store = stack.enter_context(closing(open_store(place.url)))
            store.migrate()
            ours.append(Ours(store))
        empty, full = ours
        _age(full, places[1], subject, sizes.old)
        for turn in range(sizes.rounds):
            for name, each, place in (("empty", empty, places[0]), ("alone", full, places[1])):
                each.enqueue(sizes.drain, BATCH)
                place.settle_down()
                rates[name].append(drain_turns(each, sizes.drain))
            before = _jobs(
                full
            )  # It reads everything and fills the server's cache, so it must not run next to a drain.
            full.enqueue(sizes.drain, BATCH)
            _count(full)
            places[1].settle_down()
            ready = context.Event()
            beside = context.Process(target=_sweeper, args=(places[1].url, ready))
            beside.start()
            try:
                if not ready.wait(60):
                    raise RuntimeError("the sweeper did not start")
                time.sleep(1.0)  # until it has started
                rates["beside"].append(drain_turns(full, sizes.drain))
            finally:
                beside.terminate()
                beside.join(60)
            went += before + sizes.drain - _jobs(full)
            seconds += 1.0 + sizes.drain / rates["beside"][-1]
            note(f"{subject.name} round {turn + 1} " + "  ".join(f"{k} {v[-1]:,.0f}" for k, v in rates.items()))
        removed, took = _flat_out(full, sizes.flat_out)
    base, alone, swept = (statistics.median(each) for each in rates.values())
    note(f"{subject.name}: {went:,} went during {seconds:,.1f} s of drains; flat out {removed:,} in {took:,.1f} s")
    return [
        Beside(subject.place, f"drain, {sizes.old:,} old jobs", "jobs/s", base, alone, base / alone),
        Beside(subject.place, "drain, beside the sweep", "jobs/s", alone, swept, alone / swept),
        Beside(subject.place, "removed, resting / flat out", "jobs/s", went / seconds, removed / took, 0.0),
    ]


# In the first partition: the time of its start, and a number.
IN_PARTITION = "(left('{low}', 13) || '-7000-8000-' || lpad(to_hex(n), 12, '0'))::uuid"


def _purge(backends: Backends, subject: Subject, count: int, *, whole: bool) -> float:
    """Return the server's microseconds per job to purge ``count`` jobs, including vacuum."""
    with ExitStack() as stack:
        place = stack.enter_context(backends.fresh(subject.backend, "sqlite:///"))
        assert isinstance(place, PostgresPlace)
        store = stack.enter_context(closing(open_store(place.url)))
        store.migrate()
        low = place.connection.execute("select low::text from holdfast.event_partition order by low").fetchone()
        assert low is not None
        # Jobs of a time without a partition are purged by rows.
        fill(place, count, IN_PARTITION.format(low=low[0]) if whole else IDENTIFIER)
        run = store.run
        run(store.clock.set(timedelta(days=80), None))
        run(store.retention.set(RetentionRule.of(purge_after="30d"), "bench", EVERY_TENANT))

        def catch_up() -> None:  # Workers do this all the time; it is not part of the purge.
            while run(store.audit.seal("bench")) or run(store.usage.count(1999)):
                pass

        catch_up()
        done, used = 0, 0.0
        while done < count:
            before = place.cpu()
            swept = run(store.retention.sweep())
            used += place.cpu() - before
            if swept.action == "idle":
                raise RuntimeError(f"{done} of {count} jobs were purged: the figure would mean nothing")
            done += swept.done if swept.action == "purge" else 0
            catch_up()
        before = place.cpu()
        place.connection.execute("vacuum")
        return (used + place.cpu() - before) * 1e6 / count


def purges(backends: Backends, subject: Subject, sizes: Sizes) -> Beside:
    rows = _purge(backends, subject, sizes.flat_out // 2, whole=False)
    whole = _purge(backends, subject, sizes.old, whole=True)
    return Beside(subject.place, "purge by rows, purge of a partition", PER_JOB, rows, whole, whole / rows)


def _jobs(ours: Ours) -> int:
    return sum(ours.store.run(ours.store.jobs.counts(EVERY_TENANT)).values())


def run(backends: Backends, store: str, sizes: Sizes) -> list[Beside]:
    found: list[Beside] = []
    print("\nRetention")
    for subject in (BY_NAME[name] for name in OURS):
        if store in (subject.backend, "both") and (sizes.old <= 1_000_000 or subject.backend == "postgres"):
            for row in measure(backends, subject, sizes):
                print(row.line(), flush=True)
                found.append(row)
            if subject.backend == "postgres" and sizes.old <= 1_000_000:
                found.append(purges(backends, subject, sizes))
                print(found[-1].line(), flush=True)
    return found
