"""A private SQLite file or PostgreSQL schema."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager
from tempfile import TemporaryDirectory
from typing import TypeVar

from psycopg import sql
from typing_extensions import override

from holdfast.engine.redaction import shown_url
from holdfast.errors import InvalidSetting
from holdfast.features.assembly import Store, open_store
from holdfast.features.postgres import PostgresStore
from holdfast.stores.flow import Flow

MEMORY = "sqlite:///:memory:"


@contextmanager
def private_store(url: str | None, schema: str) -> Iterator[tuple[Store, str]]:
    """The store, and the name of its schema: ``schema`` where the database is private as a whole."""
    if url is None:
        folder = TemporaryDirectory(prefix="holdfast-kit-", ignore_cleanup_errors=True)
        with folder as path, _embedded(f"sqlite:///{path}/jobs.db") as store:
            yield store, schema
    elif url == MEMORY:
        with _embedded(url) as store:
            yield store, schema
    elif url.startswith(("postgresql:", "postgres:")):
        with _on_a_server(url) as found:
            yield found
    else:
        raise InvalidSetting(
            f"{shown_url(url)} cannot hold a private test database",
            code="not_private",
            fix=f"Leave the URL out for a temporary SQLite file, or use {MEMORY} or postgresql://….",
        )


@contextmanager
def _embedded(url: str) -> Iterator[Store]:
    with closing(open_store(url)) as store:
        store.migrate()
        yield store


@contextmanager
def _on_a_server(url: str) -> Iterator[tuple[Store, str]]:

    name = f"holdfast_kit_{uuid.uuid4().hex[:16]}"
    store = PrivateSchema(url, schema=name)
    store.migrate()  # all or nothing: when it fails there is nothing to drop
    try:
        yield store, name
    finally:
        store.close()
        store.drop()


T = TypeVar("T")

LONGEST_WAIT = "10s"


class PrivateSchema(PostgresStore):
    @override
    async def arun(self, flow: Flow[T]) -> T:
        """In a thread: a pool of the loop's own would outlive it, as each test may have a loop of its own."""
        return await asyncio.to_thread(self.run, flow)

    def drop(self) -> None:
        """A transaction that somebody left open on its tables is an error soon, instead of a test that hangs."""
        with self._connected() as connection:
            connection.execute(sql.SQL("set lock_timeout = {}").format(LONGEST_WAIT))
            connection.execute(sql.SQL("drop schema if exists {} cascade").format(sql.Identifier(self.schema_name)))
