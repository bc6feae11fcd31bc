"""PostgreSQL in particular conditions: with JIT (group jit) and with lost connections (storm).

Each has one worker in a thread of this process, as in a user's program.
"""

from __future__ import annotations

import asyncio
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass

import psycopg

from bench.bars import Bar
from bench.console import note
from bench.peers.backends import Backends
from holdfast import App
from holdfast.app.internals import session_of
from tests.support.postgres_binaries import debian_bin
from tests.support.postgres_server import MISSING, DebianServer

KILL = """
    select count(pg_terminate_backend(pid)) from pg_stat_activity
     where datname = current_database() and application_name = 'holdfast'
"""


@dataclass(frozen=True)
class Sizes:
    burst: int = 100
    rounds: int = 5
    storm: float = 30.0
    """Seconds."""


QUICK = Sizes(rounds=2, storm=8.0)


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
        app.migrate()
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
        app.migrate()

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


@contextmanager
def _working(app: App) -> Iterator[None]:
    ready, stop = threading.Event(), threading.Event()

    async def serve() -> None:
        worker = app.worker()
        running = asyncio.create_task(worker.run())
        ready.set()
        await asyncio.to_thread(stop.wait)
        worker.stop()
        await running
        await session_of(app).store.leave_loop()

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
