"""A private database for a test: a temporary SQLite file, or a new schema on a PostgreSQL server."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager
from tempfile import TemporaryDirectory

from holdfast.engine.redaction import shown_url
from holdfast.errors import InvalidSetting
from holdfast.features.assembly import Store, open_store, require_postgres

MEMORY = "sqlite:///:memory:"


@contextmanager
def private_store(url: str | None, schema: str) -> Iterator[tuple[Store, str]]:
    """Yield a store and the name of its schema, which is ``schema`` unless a new schema was created."""
    if url is None:
        folder = TemporaryDirectory(prefix="holdfast-kit-", ignore_cleanup_errors=True)
        with folder as path, _embedded(f"sqlite:///{path}/jobs.db") as store:
            yield store, schema
    elif url == MEMORY:
        with _embedded(url) as store:
            yield store, schema
    elif url.startswith(("postgresql:", "postgres:")):
        with _new_schema(url) as result:
            yield result
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
def _new_schema(url: str) -> Iterator[tuple[Store, str]]:
    require_postgres()
    from holdfast.testing.private_schema import PrivateSchema

    name = f"holdfast_kit_{uuid.uuid4().hex[:16]}"
    store = PrivateSchema(url, schema=name)
    store.migrate()  # in one transaction: if it fails, there is no schema to drop
    try:
        yield store, name
    finally:
        store.close()
        store.drop()
