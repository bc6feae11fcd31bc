"""The cost of a claim in a database with many other jobs: a deep queue, scheduled jobs, finished jobs."""

from __future__ import annotations

import sqlite3
import statistics
import time
from pathlib import Path

import psycopg

from bench.subjects import Ours
from bench.timing import Row
from holdfast.engine.job import EVERY_TENANT
from holdfast.engine.settlement import Settlement
from holdfast.features.assembly import Store, open_store
from holdfast.stores.requests import ClaimRequest

MILLION = 1_000_000


def claim_seconds(ours: Ours, claims: int, batch: int) -> float:
    """Return the median time of a claim of ``batch`` jobs. Settling them is not timed."""
    times, store = [], ours.store
    for _ in range(claims):
        start = time.perf_counter()
        taken = ours.store.run(store.leases.claim(ClaimRequest(lease=ours.lease, queues=("default",), want=batch)))
        times.append(time.perf_counter() - start)
        if len(taken) != batch:
            raise RuntimeError(f"{len(taken)} claimed instead of {batch}: the figure would mean nothing")
        ended = [Settlement(claim.id, claim.attempt, "succeeded") for claim in taken]
        ours.store.run(store.leases.settle(ours.lease, ended, EVERY_TENANT))
    return statistics.median(times)


def measure(name: str, empty: Store, deep: Store, *, claims: int = 60, batch: int = 200) -> Row:
    """Alternate between a database with only the claimed jobs and one with three million more."""
    shallow_times, deep_times = [], []
    subjects = (Ours(empty), Ours(deep))
    for _ in range(5):
        subjects[0].enqueue(claims // 5 * batch, batch)
        shallow_times.append(claim_seconds(subjects[0], claims // 5, batch))
        deep_times.append(claim_seconds(subjects[1], claims // 5, batch))
    shallow, deep_time = statistics.median(shallow_times), statistics.median(deep_times)
    ratio = deep_time / shallow
    return Row(name, "claim of 200 beside 1 M queued, 1 M future, 1 M finished", shallow * 1e3, deep_time * 1e3,
               "ms", ratio, "≤ 1.3", ratio <= 1.3)  # fmt: skip


def deepen_postgres(dsn: str, size: int = MILLION) -> Store:
    """Fill the database with one insert per million. Finished jobs are made by an update that the triggers allow."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("set holdfast.tenant = '*'")
        for state, after in (
            ("past", "null"),
            ("future", "clock_timestamp() + interval '30 days'"),
            ("queued", "null"),
        ):
            connection.execute(
                "insert into holdfast.job (tenant, kind, run_at, enqueued_by, source_system, external_ref)"
                f" select 'bench', 'noop', {after}, 'bench', 'bench', %s from generate_series(1, %s)",
                (state, size),
            )
            if state == "past":
                connection.execute("set session_replication_role = replica")
                connection.execute(
                    "update holdfast.job_state set state = 'succeeded', attempt = 1, finished_at = clock_timestamp()"
                )
                connection.execute("set session_replication_role = origin")
        connection.execute("vacuum analyze")
    return open_store(dsn)


def deepen_sqlite(path: Path, size: int = MILLION) -> Store:
    store = open_store(f"sqlite:///{path}")
    store.migrate()
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA synchronous = OFF")
    guards = connection.execute(
        "SELECT name, sql FROM sqlite_master WHERE type = 'trigger' AND tbl_name = 'holdfast_job_state'"
    ).fetchall()
    for after, past in (("NULL", True), ("(unixepoch() + 2592000) * 1000000", False), ("NULL", False)):
        connection.execute("BEGIN IMMEDIATE")
        connection.execute(
            f"WITH RECURSIVE c(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM c WHERE i < {size})"
            " INSERT INTO holdfast_job (id, tenant, kind, run_at, enqueued_by, source_system)"
            " SELECT printf('%08x-%04x-7000-8000-', (unixepoch() * 1000 + i) >> 16, (unixepoch() * 1000 + i) & 65535)"
            f" || lower(hex(randomblob(6))), 'bench', 'noop', {after}, 'bench', 'bench' FROM c"
        )
        if past:
            for name, _ in guards:
                connection.execute(f"DROP TRIGGER {name}")
            connection.execute("UPDATE holdfast_job_state SET state = 'succeeded', attempt = 1, finished_at = 1")
            for _, sql in guards:
                connection.execute(sql)
        connection.execute("COMMIT")
    connection.execute("ANALYZE")
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()
    return store
