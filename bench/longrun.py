"""``--long``: the cost of a full database for a worker, and the cost of ten thousand sleeping jobs for the database."""

from __future__ import annotations

import statistics
import time
from dataclasses import replace
from typing import Any

import psycopg

from bench.console import note
from bench.peers.backends import Backends, Place, PostgresPlace
from bench.peers.bench import Bench
from bench.peers.catalog import BY_NAME
from bench.peers.process import DriverFailed

JOBS = 20_000
SLICE = 500_000
SLEEPERS = 10_000
BEATS = 4
BEAT = 10.0  # seconds: a third of a worker's default lease

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
# Counting millions of finished rows repeatedly would distort the result: query the indexes of unfinished jobs.
OPEN = (
    "select (select count(*) from holdfast.job_state where state = 'queued' and due_at is null)"
    " + (select count(*) from holdfast.job_state where state in ('leased', 'in_progress'))"
)
IDENTIFIER = "('01900000-' || lpad(to_hex(n >> 16), 4, '0') || '-7000-8000-' || lpad(to_hex(n), 12, '0'))::uuid"


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


def drain(bench: Bench, place: Place) -> float:
    """Return the rate of fresh jobs; the finished ones stay."""
    bench.enqueue(place, "bulk", JOBS)
    return bench.drain(place, JOBS)[0]["jobs_s"]


def full_tables(backends: Backends, size: int, rounds: int = 3) -> dict[str, Any]:
    """Alternate a drain beside ``size`` finished jobs and in an empty database."""
    bench = Bench(backends, replace(BY_NAME["holdfast-pg"], left=OPEN))
    rates: dict[str, list[float]] = {"empty": [], "full": []}
    with bench.place() as full:
        fill(full, size)
        for _ in range(rounds):
            with bench.place() as empty:
                rates["empty"].append(drain(bench, empty))
            rates["full"].append(drain(bench, full))
            note(f"empty {rates['empty'][-1]:,.0f} jobs/s, full {rates['full'][-1]:,.0f} jobs/s")
    empty_rate, full_rate = statistics.median(rates["empty"]), statistics.median(rates["full"])
    return {"finished": size, "empty_jobs_s": empty_rate, "full_jobs_s": full_rate, "ratio": full_rate / empty_rate}


def heartbeats(backends: Backends) -> dict[str, Any]:
    """Ten thousand sleeping jobs in one process: writes to the lease and to the jobs while nothing happens."""
    bench = Bench(backends, BY_NAME["holdfast-pg"])
    with bench.place() as place:
        assert isinstance(place, PostgresPlace)
        bench.enqueue(place, "bulk", SLEEPERS)
        with bench.workers(place, hold=True, concurrency=SLEEPERS) as team:
            bench.await_ran(team, SLEEPERS, within=120)
            time.sleep(2.0)
            before = _writes(place)
            time.sleep(BEAT * BEATS)
            after = _writes(place)
            awake = place.ask("select count(*) from holdfast.job_state where state = 'in_progress' and attempt = 1")
            memory = team.resident_mib()
            runs = team.stop()
        runs.check_once(SLEEPERS)
        bench.check_settled(place, SLEEPERS)
    if awake != SLEEPERS:
        raise DriverFailed(f"{awake} of {SLEEPERS} jobs were still held")
    lease, jobs = after[0] - before[0], after[1] - before[1]
    return {"sleepers": SLEEPERS, "beats": BEATS, "lease_writes": lease, "job_writes": jobs, "rss_mib": memory}


def _writes(place: PostgresPlace) -> tuple[int, int]:
    # The counters of another session arrive about a second late; only this session's view can be refreshed.
    place.connection.execute("select pg_stat_clear_snapshot()")
    ask = (
        "select n_tup_ins + n_tup_upd + n_tup_del from pg_stat_user_tables where schemaname = 'holdfast' and relname = "
    )
    return place.ask(f"{ask}'lease'"), place.ask(f"{ask}'job_state'")


def run(backends: Backends, size: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    beats = found["heartbeats"] = heartbeats(backends)
    held = beats["lease_writes"] <= BEATS + 1 and beats["job_writes"] == 0
    print("\nLong")
    print(
        f"  {'held  ' if held else 'MISSED'}  {SLEEPERS:,} sleeping jobs in one process:"
        f" {beats['lease_writes']} lease writes and {beats['job_writes']} job writes in {BEATS} beats"
    )
    tables = found["full_tables"] = full_tables(backends, size)
    print(
        f"  {'held  ' if tables['ratio'] >= 0.9 else 'MISSED'}  drain beside {size:,} finished jobs:"
        f" {tables['ratio']:.2f} of the empty one, bar ≥ 0.9"
    )
    return found
