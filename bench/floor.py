"""The group ``floor``: store operations compared with plain SQL, and a claim beside millions of jobs. One line per
measurement."""

from __future__ import annotations

import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from bench import schedules
from bench.console import note
from bench.depth import MILLION, deepen_postgres, deepen_sqlite, measure
from bench.subjects import Ours, PlainPostgres, PlainSqlite, Subject
from bench.timing import Row, in_turn, rate_row, seconds
from holdfast.features.assembly import Store, open_store
from tests.support.postgres_server import PostgresServer


def floors(name: str, plain: Subject, ours: Ours, bar: float, count: int, rounds: int, batch: int) -> Iterator[Row]:
    """Enqueue and drain of each subject, alternately."""
    for subject in (plain, ours):  # warm caches, plans and files alike
        subject.enqueue(batch * 5, batch)
        subject.drain(batch * 5, batch)

    def timed(subject: Subject, operation: str) -> float:
        return seconds(lambda: getattr(subject, operation)(count, batch))

    enqueued = in_turn(rounds, lambda: timed(plain, "enqueue"), lambda: timed(ours, "enqueue"))
    yield rate_row(name, f"bulk enqueue, batches of {batch}", count, enqueued, bar)
    drained = in_turn(rounds, lambda: timed(plain, "drain"), lambda: timed(ours, "drain"))
    yield rate_row(name, f"claim + settle, batches of {batch}", count, drained, bar)


def sqlite_rows(folder: Path, size: int, count: int, rounds: int) -> Iterator[Row]:
    store = _fresh(f"sqlite:///{folder}/ours.db")
    pattern = sqlite3.connect(folder / "ours.db")
    yield from floors("SQLite", PlainSqlite(folder / "plain.db", pattern), Ours(store), 0.5, count, rounds, 200)
    pattern.close()
    note(f"filling SQLite with three times {size:,} jobs")
    deep = deepen_sqlite(folder / "deep.db", size)
    yield measure("SQLite", _fresh(f"sqlite:///{folder}/empty.db"), deep)
    note(f"filling SQLite with {size:,} schedules")
    schedules.fill(timed := _fresh(f"sqlite:///{folder}/timed.db"), size)
    yield from schedules.measure("SQLite", _fresh(f"sqlite:///{folder}/untimed.db"), timed, size)


def postgres_rows(size: int, count: int, rounds: int) -> Iterator[Row]:
    server = PostgresServer(18)
    server.start()
    try:
        for name in ("ours", "empty", "deep", "timed", "untimed"):
            server.create_database(name)
            _fresh(server.dsn(name)).close()
        store = open_store(server.dsn("ours"))
        yield from floors("PostgreSQL 18", PlainPostgres(server.dsn("ours")), Ours(store), 0.6, count, rounds, 200)
        note(f"filling PostgreSQL with three times {size:,} jobs")
        deep = deepen_postgres(server.dsn("deep"), size)
        yield measure("PostgreSQL 18", open_store(server.dsn("empty")), deep)
        note(f"filling PostgreSQL with {size:,} schedules")
        schedules.fill(timed := open_store(server.dsn("timed")), size)
        yield from schedules.measure("PostgreSQL 18", open_store(server.dsn("untimed")), timed, size)
    finally:
        server.destroy()


def _fresh(url: str) -> Store:
    store = open_store(url)
    store.migrate()
    return store


def show(row: Row) -> None:
    mark = "✓" if row.holds else "✗"
    numbers = f"floor {row.floor:>10,.1f}  ours {row.ours:>10,.1f} {row.unit:6}"
    print(f"{row.store:14} {row.what:58} {numbers} ratio {row.ratio:5.2f}  bar {row.bar:6} {mark}", flush=True)


def run(store: str, *, quick: bool) -> list[Row]:
    """All measurements of the group, printed as they come."""
    size, count, rounds = (100_000, 4_000, 7) if quick else (MILLION, 20_000, 5)
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as folder:
        sources: dict[str, Callable[[], Iterator[Row]]] = {
            "sqlite": lambda: sqlite_rows(Path(folder), size, count, rounds),
            "postgres": lambda: postgres_rows(size, count, rounds),
        }
        for name, source in sources.items():
            if store in (name, "both"):
                note(f"measuring {name} against its floor")
                for row in source():
                    show(row)
                    rows.append(row)
    return rows
