"""What a durable step writes, by the counters of the databases: with one job at a time and with a hundred.

The same jobs run without steps and with ten, each in a fresh database. Both include what a job writes anyway (its
claim, its end, the lease of the worker); the difference is due to the steps.
"""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.console import note
from bench.peers.backends import Backends, Place, PostgresPlace, SqlitePlace
from bench.peers.bench import Bench, wait_until
from bench.peers.catalog import BY_NAME, OURS
from bench.peers.workloads import STEPS

# By concurrency. The write-ahead log belongs to the whole server: for few jobs its bytes are not meaningful.
JOBS = {1: 300, 100: 3_000}
QUICK_JOBS = {1: 50, 100: 500}
_COUNTED = "from pg_stat_user_tables where schemaname = 'holdfast' and relname = "


@dataclass(frozen=True)
class Counters:
    """The counters so far. For SQLite only rows and commits are known, because its log is overwritten."""

    steps: int
    commits: int
    job_updates: int = 0
    wal_bytes: int = 0


@dataclass(frozen=True)
class Writes:
    """The writes of one step. Steps that are written together share a commit."""

    store: str
    concurrency: int
    rows: float
    commits: float
    job_updates: float | None
    wal_bytes: float | None

    def line(self) -> str:
        parts = [f"{self.rows:.2f} rows", f"{self.commits:.3f} commits"]
        if self.job_updates is not None:
            parts.append(f"{self.job_updates:.2f} updates of the job's row")
        if self.wal_bytes is not None:
            parts.append(f"{self.wal_bytes:,.0f} bytes of write-ahead log")
        return f"  {self.store:10}  {self.concurrency:>3} at once: {', '.join(parts)}"


def measure(bench: Bench, concurrency: int, jobs: int) -> Writes:
    without, beside = (_counted(bench, concurrency, jobs, steps) for steps in (0, STEPS))
    total, known = jobs * STEPS, bench.subject.backend == "postgres"
    return Writes(
        bench.subject.place,
        concurrency,
        rows=beside.steps / total,
        commits=(beside.commits - without.commits) / total,
        job_updates=(beside.job_updates - without.job_updates) / total if known else None,
        wal_bytes=(beside.wal_bytes - without.wal_bytes) / total if known else None,
    )


def _counted(bench: Bench, concurrency: int, jobs: int, steps: int) -> Counters:
    """Return what was written while this many jobs with this many steps ran."""
    with bench.place() as place, _counters(place) as count:
        bench.enqueue(place, "bulk", jobs, kind="steps")
        before = count()
        bench.drain(place, jobs, steps=steps, concurrency=concurrency)
        # A session reports its counters when it ends, which may take a moment.
        wait_until(lambda: count().steps >= jobs * steps, 5, "not every step was counted")
        after = count()
    return Counters(
        after.steps - before.steps,
        after.commits - before.commits,
        after.job_updates - before.job_updates,
        after.wal_bytes - before.wal_bytes,
    )


@contextmanager
def _counters(place: Place) -> Iterator[Callable[[], Counters]]:
    if isinstance(place, PostgresPlace):
        yield lambda: _of_postgres(place)
    elif isinstance(place, SqlitePlace):
        # While this connection is open, the index of the log stays, and with it the count.
        with closing(sqlite3.connect(place.path, timeout=30)) as connection:
            connection.execute("SELECT count(*) FROM holdfast_step").fetchone()
            yield lambda: _of_sqlite(place)


def _of_postgres(place: PostgresPlace) -> Counters:
    place.connection.execute("select pg_stat_clear_snapshot()")
    return Counters(
        place.ask(f"select n_tup_ins {_COUNTED}'step'"),
        place.ask("select count(distinct xmin::text) from holdfast.step"),  # transactions that wrote
        place.ask(f"select n_tup_upd {_COUNTED}'job_state'"),
        place.ask("select pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0')"),
    )


def _of_sqlite(place: SqlitePlace) -> Counters:
    """Return the number of commits: the third word of the index of the log (https://sqlite.org/walformat.html)."""
    header = Path(f"{place.path}-shm").read_bytes()[:12]
    return Counters(place.ask("SELECT count(*) FROM holdfast_step"), int.from_bytes(header[8:12], sys.byteorder))


def run(backends: Backends, *, quick: bool) -> list[Writes]:
    found = []
    print("\nWhat a step writes")
    for name in OURS:
        for concurrency, jobs in (QUICK_JOBS if quick else JOBS).items():
            note(f"{name}: {jobs:,} jobs of {STEPS} steps and of none, {concurrency} at once")
            found.append(measure(Bench(backends, BY_NAME[name]), concurrency, jobs))
            print(found[-1].line(), flush=True)
    return found
