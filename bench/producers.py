"""Many producers: one enqueue per transaction from 1 to 64 clients at once, while a listener is connected.

On PostgreSQL ``pgbench`` calls the SQL that each library sends (threads with psycopg, if it is not installed), so that
the figures are those of the server. On SQLite the producers are threads of one process.
"""

from __future__ import annotations

import re
import sqlite3
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import psycopg

from bench.console import note
from bench.figures import LITE, PG, Figure, Rounds, Run
from bench.peers.backends import PostgresPlace
from bench.peers.bench import Bench, Figures
from bench.peers.catalog import BY_NAME
from bench.peers.process import DriverFailed
from holdfast import App

CLIENTS = (1, 8, 32, 64)
TABLE = (
    "create table plain (id uuid primary key default gen_random_uuid(), queue text not null, state text not null,"
    " priority int not null, payload json not null, created_at timestamptz not null default clock_timestamp())",
    "create index on plain (queue, priority, created_at) where state = 'queued'",
)
INSERT = "insert into plain (queue, state, priority, payload) values ('default', 'queued', 0, '{\"number\": 1}')"
SQLITE_TABLE = (
    "pragma journal_mode = wal",
    "pragma synchronous = full",
    "create table if not exists plain (id text primary key, queue text, state text, priority int, payload text,"
    " at int)",
    "create index if not exists waiting on plain (queue, priority, at) where state = 'queued'",
)
SQLITE_INSERT = "insert into plain values (lower(hex(randomblob(16))), 'default', 'queued', 0, '1', unixepoch())"
ENQUEUE = "select * from holdfast.enqueue('noop', '{\"number\": 1}')"
ENQUEUE_ONE = (
    "select holdfast.enqueue_one(uuidv7(), 'noop', 'default', '{\"number\": 1}', 0::smallint, 4::smallint,"
    " 3::smallint, 'bench', 'bench', 'default')"
)
# What Queries.enqueue() of PgQueuer 1.6 sends for one job.
PGQUEUER = """
with input as materialized (
    select nextval((select pg_get_serial_sequence('pgqueuer', 'id'))) as id,
           priority, entrypoint, payload, execute_after, dedupe_key, headers, ord
      from unnest(array[0], array['noop'], array['1'::bytea], array['0 s'::interval], array[null::text],
                  array['{}'::jsonb]) with ordinality
           as t(priority, entrypoint, payload, execute_after, dedupe_key, headers, ord)),
inserted as (
    insert into pgqueuer as job (id, priority, entrypoint, payload, execute_after, dedupe_key, headers, status)
    select id, priority, entrypoint, payload, execute_after + now(), dedupe_key, headers, 'queued' from input
    returning id, entrypoint, priority, dedupe_key),
logged as (
    insert into pgqueuer_log (job_id, status, entrypoint, priority)
    select id, 'queued', entrypoint, priority from inserted where id in (select id from input))
select i.ord as ord, ins.id as id from inserted ins join input i on i.id = ins.id order by i.ord"""


@dataclass(frozen=True)
class Producer:
    """The SQL of one enqueue, the table that has the jobs, and what a listener does."""

    sql: str
    table: str
    listen: str
    subject: str | None = None  # whose schema it needs
    before: str = ""


OURS, PGQ = "holdfast-pg", "PgQueuer"
PRODUCERS: dict[str, Producer] = {
    "plain insert": Producer(INSERT, "plain", "listen plain"),
    "insert + pg_notify": Producer(f"begin;\n{INSERT};\nselect pg_notify('plain', 'x');\nend", "plain", "listen plain"),
    PGQ: Producer(PGQUEUER, "pgqueuer", "listen ch_pgqueuer", "pgqueuer"),
    "graphile-worker": Producer(
        "select graphile_worker.add_job('noop', '{\"number\": 1}')", "graphile_worker._private_jobs",
        'listen "jobs:insert"', "graphile",
    ),
    "enqueue": Producer(ENQUEUE, "holdfast.job", "listen holdfast", OURS),
    "enqueue, awaited": Producer(ENQUEUE, "holdfast.job", "listen holdfast; select holdfast.signal_key()", OURS),
    "enqueue_one": Producer(ENQUEUE_ONE, "holdfast.job", "listen holdfast", OURS),
    "enqueue, notify off": Producer(
        ENQUEUE, "holdfast.job", "listen holdfast; select holdfast.signal_key()", OURS,
        "alter database {name} set holdfast.notify = off",
    ),
}  # fmt: skip


def pgbench() -> str | None:
    """Return the newest pgbench of Debian's packages."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/pgbench"), key=lambda each: float(each.parts[4]))
    return str(found[-1]) if found else None


def _by_pgbench(program: str, url: str, sql: str, clients: int, seconds: int) -> float:
    with tempfile.NamedTemporaryFile("w", suffix=".sql") as script:
        script.write(f"{sql};\n")
        script.flush()
        command = [program, "-n", "-M", "prepared", "-c", str(clients), "-j", str(min(clients, 2)), "-T", str(seconds)]
        done = subprocess.run([*command, "-f", script.name, url], capture_output=True, text=True, check=False)
    rate = re.search(r"tps = ([\d.]+)", done.stdout)
    if done.returncode != 0 or rate is None:
        raise DriverFailed(f"pgbench failed: {done.stderr[-300:].strip()}")
    return float(rate[1])


def _by_threads(work: Callable[[threading.Event], int], clients: int, seconds: float) -> float:
    """Return the rate of this many threads; each returns how often it has enqueued."""
    stop, done = threading.Event(), list[int]()
    threads = [threading.Thread(target=lambda: done.append(work(stop))) for _ in range(clients)]
    began = time.perf_counter()
    for thread in threads:
        thread.start()
    time.sleep(seconds)
    stop.set()
    for thread in threads:
        thread.join()
    if len(done) != clients:
        raise DriverFailed(f"{clients - len(done)} of {clients} producers failed")
    return sum(done) / (time.perf_counter() - began)


def _client(url: str, sql: str, stop: threading.Event) -> int:
    count = 0
    with psycopg.connect(url, autocommit=True) as connection:
        while not stop.is_set():
            for each in sql.split(";\n"):
                connection.execute(each.encode())
            count += 1
    return count


@contextmanager
def _listening(place: PostgresPlace, producer: Producer) -> Iterator[None]:
    with psycopg.connect(place.url, autocommit=True) as connection:
        for each in producer.listen.split("; "):
            connection.execute(each.encode())
        yield


def measure(place: PostgresPlace, producer: Producer, clients: int, seconds: int) -> Figures:
    program, count = pgbench(), f"select count(*) from {producer.table}"
    with _listening(place, producer):
        before, cpu, written = place.ask(count), place.cpu(), place.written()
        if program is None:
            rate = _by_threads(partial(_client, place.url, producer.sql), clients, seconds)
        else:
            rate = _by_pgbench(program, place.url, producer.sql, clients, seconds)
        time.sleep(0.1)  # until the server has counted its processes that have ended
        added = place.ask(count) - before
    if not 0.8 < added / (rate * seconds) < 1.25:
        raise DriverFailed(f"{added} jobs were added at {rate:.0f} a second in {seconds} s")
    return {
        "enqueues_s": rate,
        "server_us": (place.cpu() - cpu) / added * 1e6,
        "wal_bytes": (place.written() - written) / added,
    }


def _postgres(run: Run, rounds: Rounds) -> None:
    note(f"producers: {pgbench() or 'threads with psycopg: pgbench is not installed'}")
    clients, seconds = ((1, 4) if run.quick else CLIENTS), run.size(1, 2, 10)
    with ExitStack() as stack:
        places: dict[str, PostgresPlace] = {}
        for name, producer in PRODUCERS.items():
            usable = run.benches(producer.subject) if producer.subject else []
            if producer.subject and not usable:
                continue
            opened = usable[0].place() if usable else run.backends.fresh("postgres")
            place = stack.enter_context(opened)
            assert isinstance(place, PostgresPlace)
            places[name] = place
            for statement in () if usable else TABLE:
                place.connection.execute(statement.encode())
            if producer.before:
                place.connection.execute(producer.before.format(name=place.connection.info.dbname).encode())
        for _ in range(run.rounds):
            for many in clients:
                for name, place in places.items():
                    rounds.take(f"{name} {many}", partial(measure, place, PRODUCERS[name], many, seconds))


def _sqlite(run: Run, rounds: Rounds) -> None:
    """Threads of one process: our enqueue, and an insert with a commit on one connection behind a lock."""
    lock, seconds = threading.Lock(), run.size(1, 2, 10)
    with Bench(run.backends, BY_NAME["holdfast-sqlite"]).place() as place, ExitStack() as stack:
        plain = stack.enter_context(
            closing(sqlite3.connect(f"{run.backends.folder}/plain.db", isolation_level=None, check_same_thread=False))
        )
        for statement in SQLITE_TABLE:
            plain.execute(statement)
        app = stack.enter_context(closing(App(place.url, name="bench")))

        def insert(stop: threading.Event) -> int:
            count = 0
            while not stop.is_set():
                with lock:
                    plain.execute(SQLITE_INSERT)
                count += 1
            return count

        def enqueue(stop: threading.Event) -> int:
            count = 0
            while not stop.is_set():
                app.enqueue("noop", {"number": count})
                count += 1
            return count

        for _ in range(run.rounds):
            for many in (1, 4) if run.quick else (1, 8, 32):
                for name, work in (("plain", insert), ("enqueue", enqueue)):
                    rounds.take(f"sqlite {name} {many} enqueues_s", partial(_by_threads, work, many, seconds))


def producers(run: Run) -> list[Figure]:
    found, rounds = list[Figure](), Rounds()
    if run.wants("postgres"):
        _postgres(run, rounds)
    if run.wants("sqlite"):
        _sqlite(run, rounds)
    for name in PRODUCERS:
        for many in CLIENTS:
            own, what = f"{name} {many}", f"{name}, {many} clients" if many > 1 else f"{name}, 1 client"
            others = (PGQ, "graphile-worker", "plain insert", "insert + pg_notify")
            for other in others if name.startswith("enqueue") else ():
                found += rounds.figure(
                    "producers", PG, what, "1/s", f"{own} enqueues_s", other, f"{other} {many} enqueues_s"
                )
            if name.startswith("enqueue") and many == 32:
                found += rounds.figure(
                    "producers", PG, what, "1/s", f"{own} enqueues_s", "8 clients", f"{name} 8 enqueues_s"
                )
            if not name.startswith("enqueue"):
                found += rounds.figure("producers", PG, what, "1/s", f"{own} enqueues_s")
            elif many == 1:
                found += rounds.figure(
                    "producers", PG, f"{name}, server CPU", "µs", f"{own} server_us",
                    "plain insert", "plain insert 1 server_us",
                )  # fmt: skip
                found += rounds.figure(
                    "producers", PG, f"{name}, WAL", "B/job", f"{own} wal_bytes", PGQ, f"{PGQ} 1 wal_bytes"
                )
    for many in (1, 8, 32):
        found += rounds.figure(
            "producers", LITE, f"enqueue, {many} threads" if many > 1 else "enqueue, 1 thread", "1/s",
            f"sqlite enqueue {many} enqueues_s", "plain insert", f"sqlite plain {many} enqueues_s",
        )  # fmt: skip
    return found
