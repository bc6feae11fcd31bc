"""Trace a job on either store: the source files that it enters between ``enqueue`` and its recorded success.

An idle worker in this process is notified of the job, claims, runs and settles it. Python files are found with a
profile function in every thread, SQL files on PostgreSQL with ``pg_stat_user_functions``. Background work that happens
meanwhile is not part of the walk: only what every one of several jobs enters counts.
"""

from __future__ import annotations

import re
import sqlite3
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import psycopg

import holdfast
from holdfast import App
from tests.support.postgres_server import PostgresServer
from tests.support.workers import working

SRC = Path(holdfast.__file__).parent
JOBS = 20
# Intervals of background work that no job of the trace needs.
QUIET = {"poll": 60.0, "promote_every": 3600.0, "sweep_every": 3600.0}

CALLED = "select funcname from pg_stat_user_functions where schemaname = 'holdfast' and calls >= %s"
OTHERS = "select pid from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()"
SUCCEEDED = "select count(*) from {}job_state where state = 'succeeded'"


class Tracer:
    """Collects the files of ``src/holdfast`` whose functions are called, in every thread, while it records."""

    def __init__(self) -> None:
        self.recording = False
        self.files: set[str] = set()

    def __call__(self, frame: FrameType, event: str, arg: Any) -> None:
        if self.recording and event == "call" and frame.f_code.co_name != "<module>":  # not a first import
            self.files.add(frame.f_code.co_filename)

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Trace this thread and the threads that start within the block."""
        threading.setprofile(self)
        sys.setprofile(self)
        try:
            yield
        finally:
            sys.setprofile(None)
            threading.setprofile(None)


def python_files(url: str, succeeded: Callable[[], int]) -> set[str]:
    """Run jobs one after another and return the files that each of them entered."""
    app, tracer, walks = App(url), Tracer(), list[set[str]]()

    @app.job
    async def send(to: str) -> str:
        return to

    with tracer.installed(), working(app, **QUIET):
        for number in range(JOBS + 1):
            tracer.files, tracer.recording = set(), True
            send.using(priority=1).enqueue("a@example.com")  # not the options of the job before, which are cached
            _wait_until(lambda: succeeded() > number, 30.0)  # noqa: B023
            time.sleep(0.1)  # the worker falls asleep
            tracer.recording = False
            if number > 0:  # the first job opens connections
                walks.append(tracer.files)
    app.close()
    paths = {Path(name) for name in set.intersection(*walks)}
    return {path.relative_to(SRC).as_posix() for path in paths if path.is_relative_to(SRC)}


def _wait_until(condition: Callable[[], bool], seconds: float) -> None:
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.01)


def on_sqlite() -> set[str]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "jobs.db")

        def succeeded() -> int:
            with closing(sqlite3.connect(path)) as connection:
                return int(connection.execute(SUCCEEDED.format("holdfast_")).fetchone()[0])

        return python_files(f"sqlite:///{path}", succeeded)


def on_postgres() -> set[str]:
    server = PostgresServer(in_memory=True, settings={"track_functions": "all"})
    server.start()
    try:
        dsn = server.create_database("walk")
        App(dsn).migrate()
        with psycopg.connect(dsn, autocommit=True) as connection:

            def succeeded() -> int:
                row = connection.execute(SUCCEEDED.format("holdfast.")).fetchone()
                assert row is not None
                return int(row[0])

            entered = python_files(dsn, succeeded)
            # A session reports its calls when it ends.
            _wait_until(lambda: connection.execute(OTHERS).fetchall() == [], 30.0)
            called = {str(name) for (name,) in connection.execute(CALLED, (JOBS + 1,))}
    finally:
        server.destroy()
    return entered | sql_files(called)


def sql_files(functions: set[str]) -> set[str]:
    """Return the files that define these functions."""
    return {
        path.relative_to(SRC).as_posix()
        for path in SRC.rglob("*.sql")
        if functions & set(re.findall(r"^create (?:or replace )?function (\w+)", path.read_text("utf-8"), re.M))
    }


if __name__ == "__main__":
    for walk in (on_postgres(), on_sqlite()):
        print(len(walk), *sorted(walk), sep="\n  ")
