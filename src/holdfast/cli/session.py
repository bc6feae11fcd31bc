"""From ``--url`` and ``--tenant`` to a client. Nothing is created by looking: only what writes may make a file."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path

from holdfast import config
from holdfast.client import Client
from holdfast.domain.errors import InvalidSetting, NotFound, SchemaMismatch
from holdfast.domain.job import DEFAULT_TENANT, EVERY_TENANT
from holdfast.domain.keys import check_name
from holdfast.stores.base import Store
from holdfast.stores.open import open_store
from holdfast.stores.sqlite.connection import database_path

NAME = "holdfast"


def scope(
    tenant: str | None,
    all_tenants: bool = False,
    *,
    default: str = DEFAULT_TENANT,
    environment: Mapping[str, str] = os.environ,
) -> str:
    """The tenant asked for, ``*`` for all of them."""
    if all_tenants:
        if tenant is not None:
            raise InvalidSetting("give --tenant or --all-tenants, not both", code="conflicting_options")
        return EVERY_TENANT
    named = tenant if tenant is not None else environment.get(config.TENANT_VARIABLE) or None
    return default if named is None else check_name(named, "tenant")


@contextmanager
def store_at(url: str | None, schema: str) -> Iterator[Store]:
    with closing(open_store(config.database_url(url), schema=schema)) as store:
        yield store


@contextmanager
def connect(url: str | None, tenant: str, schema: str) -> Iterator[Client]:
    """A client for a database that is there and has our tables."""
    with store_at(url, schema) as store:
        refuse_unready(store)
        yield Client(store, tenant=tenant, name=NAME, actor=config.operating_user())


def refuse_unready(store: Store) -> None:
    refuse_absent(store)
    if not store.schema().applied:
        raise SchemaMismatch(
            "the tables of Holdfast are not in this database", code="not_migrated", fix="Run: holdfast migrate"
        )


def is_absent(store: Store) -> bool:
    if not store.embedded:
        return False
    path = database_path(store.url)
    return path != ":memory:" and not Path(path).exists()


def refuse_absent(store: Store) -> None:
    if is_absent(store):
        raise NotFound(
            f"there is no database file {database_path(store.url)}",
            code="no_database",
            fix="Check --url, or make the file with: holdfast migrate",
        )
