"""The SQL code files: every file is listed once, and their order installs on an empty schema."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

import holdfast
from holdfast.features import FEATURES
from holdfast.features.assembly import open_store
from holdfast.stores.migrations import CodeFiles
from holdfast.stores.postgres.migrations import CODE_FILES as POSTGRES
from holdfast.stores.sqlite.connections import database_path
from holdfast.stores.sqlite.migrations import CODE_FILES as SQLITE
from holdfast.stores.sqlite.upgrade import split
from tests.migration.next_release import plan_of

pytestmark = pytest.mark.req("DP-20", "SC-1")

PACKAGE = Path(holdfast.__file__).parent


def listed(code: CodeFiles) -> list[Path]:
    return [Path(str(path)) for path in code.paths(FEATURES)]


def test_every_code_file_is_listed_once() -> None:
    paths = sorted([*listed(POSTGRES), *listed(SQLITE)])
    result = sorted(path for path in PACKAGE.rglob("*.sql") if path.parent.name != "migrations")
    assert paths == result


def test_every_feature_folder_is_listed_once() -> None:
    folders = {path.parent.name for path in PACKAGE.glob("features/*/__init__.py")}
    assert sorted(FEATURES) == sorted(folders)


def test_files_of_a_feature_start_with_its_main_file() -> None:
    names = [path.name for path in listed(POSTGRES) if path.parent.name == "retention"]
    assert names == ["postgres.sql", "postgres_partitions.sql", "postgres_purge.sql"]


def test_files_install_in_the_declared_order(empty_url: str, kind: str) -> None:
    with closing(open_store(empty_url)) as store:
        migrations = plan_of(store).migrations
    if kind == "sqlite":
        with closing(sqlite3.connect(database_path(empty_url), isolation_level=None)) as file:
            for text in (*(script.sql for script in migrations), *(path.read_text() for path in listed(SQLITE))):
                for statement in split(text):
                    file.execute(statement)
            count = file.execute("select count(*) from sqlite_schema where type = 'trigger'").fetchone()
        assert count[0] > 100
        return
    with psycopg.connect(empty_url) as connection:
        connection.execute("create schema holdfast")
        connection.execute("set search_path = holdfast, pg_catalog, pg_temp")
        for script in migrations:
            connection.execute(script.sql.encode())
        for path in listed(POSTGRES):
            try:
                connection.execute(path.read_bytes())
            except psycopg.Error as error:
                raise AssertionError(f"{path.relative_to(PACKAGE)}: {error}") from error
        row = connection.execute(
            "select count(*) from pg_proc where pronamespace = 'holdfast'::regnamespace"
        ).fetchone()
    assert row is not None
    assert row[0] > 200
