"""Holdfast shares a SQLite file with the tables of an application, whatever their names are."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import pytest

from holdfast.features.assembly import open_store
from holdfast.stores.sqlite.connections import database_path
from tests.support.sqlite_names import NAMES, PREFIX
from tests.support.stores import put_one, work

pytestmark = pytest.mark.req("SC-1")


def test_every_object_has_the_prefix(sqlite_url: str) -> None:
    with closing(open_store(sqlite_url)) as store:
        store.migrate()
    with closing(sqlite3.connect(database_path(sqlite_url))) as connection:
        names = [name for (name,) in connection.execute("select name from sqlite_schema")]
    assert [name for name in names if not name.startswith((PREFIX, "sqlite_autoindex_", "sqlite_sequence"))] == []


def test_tables_of_the_application_may_have_any_name(new_sqlite_url: str) -> None:
    with closing(sqlite3.connect(database_path(new_sqlite_url))) as connection:
        for name in sorted(NAMES):
            connection.execute(f"create table {name} (note text)")
        connection.execute("insert into job values ('mine')")
        connection.commit()
    with closing(open_store(new_sqlite_url)) as store:
        store.migrate()
        job = put_one(store)
        assert [claim.id for claim in work(store)] == [job]
    with closing(sqlite3.connect(database_path(new_sqlite_url))) as connection:
        assert connection.execute("select note from job").fetchall() == [("mine",)]
