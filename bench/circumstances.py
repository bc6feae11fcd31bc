"""PostgreSQL in particular conditions: with JIT (group jit), with lost connections (storm), beside an old transaction
(pressure), and idle (idle).

Each has one worker in a thread of this process, as in a user's program.
"""

from __future__ import annotations

import asyncio
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass

import psycopg
from psycopg.conninfo import conninfo_to_dict

from bench.bars import Bar
from bench.console import note
from bench.peers.backends import Backends
from holdfast import App
from holdfast.worker.worker import WorkerOptions
from tests.support.postgres_binaries import debian_bin
from tests.support.postgres_server import MISSING, DebianServer

KILL = """
    select count(pg_terminate_backend(pid)) from pg_stat_activity
     where datname = current_database() and application_name = 'holdfast'
"""
TRANSACTIONS = "select xact_commit + xact_rollback from pg_stat_database where datname = %s"
CONNECTIONS = "select count(*) from pg_stat_activity where datname = %s and application_name = 'holdfast'"


@dataclass(frozen=True)
class Sizes:
    burst: int = 100
    rounds: int = 5
    storm: float = 30.0
    """Seconds."""
    pressure: float = 300.0
    workers: int = 10
    settle: float = 75.0
    """Seconds until the connections of the start are closed again."""
    idle: float = 30.0


QUICK = Sizes(rounds=2, storm=8.0, pressure=60.0, workers=2, settle=20.0, idle=10.0)


def jit(sizes: Sizes) -> list[Bar]:
    """A burst of trivial jobs on a Debian server, with its defaults and with `jit = off`."""
    print("\nWith JIT")
    if debian_bin() is None:
        note(f"skipped: {MISSING}")
        return []
    server = DebianServer()
    took: dict[str, list[float]] = {"on": [], "off": []}
    try:
        server.start()
        for turn in range(sizes.rounds):
            for setting in sorted(took, reverse=bool(turn % 2)):
                name = f"jit_{setting}_{turn}"
                url = server.create_database(name)
                with psycopg.connect(url, autocommit=True) as connection:
                    connection.execute(f"alter database {name} set jit = {setting}")
                took[setting].append(_burst(url, sizes.burst))
                server.drop_database(name)
    finally:
        server.destroy()
    on, off = (statistics.median(each) for each in took.values())
    note(f"PostgreSQL {server.version}, burst of {sizes.burst} jobs: jit = on {on:.2f} s, jit = off {off:.2f} s")
    return [
        Bar(f"PostgreSQL {server.version} with LLVM, burst of {sizes.burst}: jit on over off", on / off, 2.0, False)
    ]


def _burst(url: str, count: int) -> float:
    done: list[int] = []
    with closing(App(url, name="bench")) as app:
        app._store.migrate()
        noop = app.job(name="noop")(done.append)
        for number in range(count):
            noop.enqueue(number)
        began = time.perf_counter()
        app.run_worker(burst=True)
        took = time.perf_counter() - began
    if sorted(done) != list(range(count)):
        raise RuntimeError(f"{len(done)} of {count} jobs were run: the figure would mean nothing")
    return took


def storm(backends: Backends, sizes: Sizes) -> list[Bar]:
    """A job every 20 ms while all connections of the worker are killed twice a second: the time from enqueue to
    handler."""
    print("\nWith connections that are lost")
    begun: dict[int, float] = {}
    asked: dict[int, float] = {}
    with backends.fresh("postgres") as place, closing(App(place.url, name="bench")) as app:
        app._store.migrate()

        async def noop(number: int) -> None:
            begun.setdefault(number, time.perf_counter())

        app.job(name="noop")(noop)
        with psycopg.connect(place.url, autocommit=True) as producer, _working(app):
            until = time.perf_counter() + sizes.storm
            while (now := time.perf_counter()) < until:
                number = len(asked)
                if number % 25 == 24:
                    producer.execute(KILL)
                producer.execute("select holdfast.enqueue('noop', %s::json)", (f'{{"number": {number}}}',))
                asked[number] = time.perf_counter()
                time.sleep(max(0.0, 0.02 - (time.perf_counter() - now)))
            _await(lambda: len(begun) == len(asked))
    waits = sorted((begun[number] - at) * 1000 for number, at in asked.items())
    p50, p99 = waits[len(waits) // 2], waits[int(len(waits) * 0.99)]
    note(f"{len(asked)} jobs, {len(asked) // 25} kills: p50 {p50:.1f} ms, p99 {p99:.1f} ms, longest {waits[-1]:.1f} ms")
    return [Bar("claim p99 with all connections killed twice a second", p99, 60.0, False, "ms")]


RATE, BATCH = 800, 8
QUIET = 20.0
VACUUM_EVERY = 20.0
WINDOW = 5.0


def pressure(backends: Backends, sizes: Sizes) -> list[Bar]:
    """800 jobs/s, first alone, then beside a transaction that stays open while `job_state` is vacuumed and analysed
    every 20 s: completions in each window of 5 s, and the time from enqueue to handler. With one tenant, and with two
    that share the queue."""
    print("\nBeside an old transaction")
    found = []
    for tenants in ("a", "ab"):
        with backends.fresh("postgres") as place, closing(App(place.url, name="bench")) as app:
            slowest, ratio = _press(app, place.url, tenants, sizes.pressure)
        name = f"beside an old transaction, tenants: {len(tenants)}"
        found += [
            Bar(f"{name}: slowest {WINDOW:g} s over {RATE} jobs/s", slowest, 0.95, True),
            Bar(f"{name}: claim p99 over that alone", ratio, 3.0, False),
        ]
    return found


def _press(app: App, url: str, tenants: str, seconds: float) -> tuple[float, float]:
    """Return the slowest window's share of the rate, and the p99 over that of the quiet phase."""
    begun: dict[int, float] = {}
    asked: dict[int, float] = {}
    app._store.migrate()

    @app.job(name="noop")
    async def noop(number: int) -> None:
        begun.setdefault(number, time.perf_counter())

    def phase(name: str, seconds: float) -> tuple[float, float]:
        """Return the jobs per second of the slowest window, and the p99 in milliseconds."""
        before, began = len(asked), time.perf_counter()
        while (now := time.perf_counter()) < began + seconds:
            first = len(asked)
            with app.tenant(tenants[first // BATCH % len(tenants)]):
                app.enqueue_many([noop.prepare(first + n) for n in range(BATCH)])
            asked.update(dict.fromkeys(range(first, first + BATCH), time.perf_counter()))
            time.sleep(max(0.0, began + (len(asked) - before) / RATE - time.perf_counter()))
        _await(lambda: len(begun) == len(asked))
        waits = sorted((begun[each] - at) * 1000 for each, at in asked.items() if each >= before)
        windows = [0] * int((now - began) / WINDOW)
        for at in begun.values():
            if began <= at and (n := int((at - began) / WINDOW)) < len(windows):
                windows[n] += 1
        p99, slowest = waits[int(len(waits) * 0.99)], min(windows) / WINDOW
        note(f"{name}: p50 {waits[len(waits) // 2]:.1f} ms, p99 {p99:.1f} ms, longest {waits[-1]:.0f} ms,"
             f" slowest window {slowest:.0f} jobs/s")  # fmt: skip
        return slowest, p99

    with _working(app):
        phase("warming up", WINDOW)
        _, quiet = phase("alone", QUIET)
        with psycopg.connect(url) as old, _vacuuming(url):
            old.execute("set transaction isolation level repeatable read")
            old.execute("select count(*) from holdfast.job_state")
            slowest, pressed = phase("beside an old transaction", seconds)
    return slowest / RATE, pressed / quiet


@contextmanager
def _vacuuming(url: str) -> Iterator[None]:
    stop = threading.Event()

    def vacuum() -> None:
        with psycopg.connect(url, autocommit=True) as connection:
            while not stop.wait(VACUUM_EVERY):
                connection.execute("vacuum analyze holdfast.job_state")

    thread = threading.Thread(target=vacuum, name="bench-vacuum")
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def idle(backends: Backends, sizes: Sizes) -> list[Bar]:
    """Idle workers: one, and several together."""
    print("\nIdle workers")
    found = []
    for count in (1, sizes.workers):
        with backends.fresh("postgres") as place:
            with closing(App(place.url)) as first:
                first._store.migrate()
            rate, connections = _rest(place.url, backends.postgres.dsn(), count, sizes)
        note(f"{count} idle: {rate:.2f} transactions/s, {connections:.1f} connections each")
        found += [
            Bar(f"{count} idle: transactions each", rate, 2.0, False, "1/s"),
            Bar(f"{count} idle: connections each", connections, 3.0, False, ""),
        ]
    return found


def _rest(url: str, beside: str, count: int, sizes: Sizes) -> tuple[float, float]:
    """Transactions per second and connections of one of several idle workers."""
    with ExitStack() as stack:
        for _ in range(count):
            stack.enter_context(_working(stack.enter_context(closing(App(url, name="bench")))))
        with psycopg.connect(beside, autocommit=True) as connection:
            name = conninfo_to_dict(url)["dbname"]

            def ask(query: str) -> int:
                row = connection.execute(query, (name,)).fetchone()
                assert row is not None
                return int(row[0])

            time.sleep(sizes.settle)
            before, began = ask(TRANSACTIONS), time.perf_counter()
            time.sleep(sizes.idle)
            rate = (ask(TRANSACTIONS) - before) / (time.perf_counter() - began)
            return rate / count, ask(CONNECTIONS) / count


@contextmanager
def _working(app: App) -> Iterator[None]:
    ready, stop = threading.Event(), threading.Event()

    async def serve() -> None:
        worker = app.worker(WorkerOptions())
        running = asyncio.create_task(worker.run())
        ready.set()
        await asyncio.to_thread(stop.wait)
        worker.stop()
        await running
        await app._store.leave_loop()

    thread = threading.Thread(target=lambda: asyncio.run(serve()), name="bench-worker")
    thread.start()
    try:
        if not ready.wait(30):
            raise RuntimeError("the worker did not start")
        yield
    finally:
        stop.set()
        thread.join()


def _await(condition: Callable[[], bool]) -> None:
    latest = time.perf_counter() + 30
    while not condition():
        if time.perf_counter() > latest:
            raise RuntimeError("not all jobs were run: the figure would mean nothing")
        time.sleep(0.01)
