"""The databases: a fresh one for each subject and workload, and the queries of the harness."""

from __future__ import annotations

import itertools
import shutil
import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import psycopg

from bench.peers.meters import cpu_seconds
from bench.peers.redis import RedisServer, program
from bench.peers.restate_server import RestateServer
from tests.support.postgres_server import PostgresServer

# The same for every subject. Everything else is PostgreSQL's default, autovacuum included.
POSTGRES_SETTINGS = {
    "fsync": "on",
    "synchronous_commit": "on",
    "full_page_writes": "on",
    "shared_buffers": "512MB",
    "max_wal_size": "4GB",
    "max_connections": "600",  # room for a hundred idle workers
}

_numbers = itertools.count(1)


class Place(ABC):
    """One fresh database."""

    url: str

    @abstractmethod
    def ask(self, question: str) -> int:
        """Return the single number of a query."""

    def settle_down(self) -> None:
        """Settle the database before a measured phase, so that preparation does not affect it."""
        return

    def cpu(self) -> float:
        """Return the CPU seconds of the server, if there is one."""
        return 0.0

    def size(self) -> int:
        """Return the bytes of the database on disk, if that can be known."""
        return 0

    def written(self) -> int:
        """Return the position in the server's write-ahead log, if it has one."""
        return 0


class PostgresPlace(Place):
    def __init__(self, server: PostgresServer, name: str) -> None:
        self.server = server
        self.url = server.dsn(name)
        self.connection = psycopg.connect(self.url, autocommit=True)

    def ask(self, question: str) -> int:
        row = self.connection.execute(question).fetchone()
        assert row is not None
        return int(row[0])

    def rows(self, question: str) -> list[tuple[Any, ...]]:
        return self.connection.execute(question).fetchall()

    def settle_down(self) -> None:
        self.connection.execute("checkpoint")

    def cpu(self) -> float:
        return cpu_seconds(self.server.pid)

    def size(self) -> int:
        return self.ask("select pg_database_size(current_database())")

    def written(self) -> int:
        return self.ask("select pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::bigint")


class SqlitePlace(Place):
    def __init__(self, path: Path, scheme: str) -> None:
        self.path = path
        self.url = f"{scheme}{path}"

    def ask(self, question: str) -> int:
        with closing(sqlite3.connect(self.path, timeout=30)) as connection:
            return int(connection.execute(question).fetchone()[0])

    def rows(self, question: str) -> list[tuple[Any, ...]]:
        with closing(sqlite3.connect(self.path, timeout=30)) as connection:
            return connection.execute(question).fetchall()

    def settle_down(self) -> None:
        with closing(sqlite3.connect(self.path, timeout=30)) as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def size(self) -> int:
        self.settle_down()
        return self.path.stat().st_size


class RedisPlace(Place):
    def __init__(self, server: RedisServer) -> None:
        self.server = server
        self.url = server.url

    def ask(self, question: str) -> int:
        return sum(self.server.number(part.strip()) for part in question.split("+"))

    def cpu(self) -> float:
        return cpu_seconds(self.server.process.pid)


class RestatePlace(Place):
    def __init__(self, server: RestateServer) -> None:
        self.server = server
        self.url = server.url

    def ask(self, question: str) -> int:
        return self.server.number(question)

    def cpu(self) -> float:
        return cpu_seconds(self.server.process.pid)


class Backends:
    """Starts servers when they are needed, and ends them. A server that was passed in is left running."""

    def __init__(self, folder: Path, server: PostgresServer | None = None) -> None:
        self.folder = folder
        self._given = server
        self._server: PostgresServer | None = None
        self._redis: RedisServer | None = None

    def missing(self, backend: str) -> str | None:
        """Return why a backend is not available here, or None."""
        return "no redis-server" if backend == "redis" and program() is None else None

    @property
    def postgres(self) -> PostgresServer:
        if self._given is not None:
            return self._given
        if self._server is None:
            self._server = PostgresServer(18, settings=POSTGRES_SETTINGS)
            self._server.start()
        return self._server

    @property
    def redis(self) -> RedisServer:
        if self._redis is None:
            self._redis = RedisServer(self.folder)
        return self._redis

    @contextmanager
    def fresh(self, backend: str, scheme: str = "") -> Iterator[Place]:
        number = next(_numbers)
        if backend == "postgres":
            name = f"bench_{number}"
            self.postgres.create_database(name)
            place = PostgresPlace(self.postgres, name)
            try:
                yield place
            finally:
                place.connection.close()
                self.postgres.drop_database(name)
        elif backend == "redis":
            self.redis.forget_all()
            yield RedisPlace(self.redis)
            self.redis.forget_all()
        elif backend == "restate":
            server = RestateServer(self.folder / f"restate_{number}")
            try:
                yield RestatePlace(server)
            finally:
                server.close()
                shutil.rmtree(self.folder / f"restate_{number}", ignore_errors=True)
        else:
            path = self.folder / f"bench_{number}.db"
            try:
                yield SqlitePlace(path, scheme)
            finally:
                for each in self.folder.glob(f"{path.name}*"):
                    each.unlink()

    def close(self) -> None:
        if self._server is not None:
            self._server.destroy()
            self._server = None
        if self._redis is not None:
            self._redis.close()
            self._redis = None
