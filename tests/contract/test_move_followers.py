"""Programs that are started with the URL of a database that was moved work at once (HF-1)."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import psycopg
import pytest

from holdfast import App
from holdfast.errors import HoldfastError, InvalidSetting, SchemaMismatch, StoreError, StoreUnavailable
from holdfast.features.assembly import open_store
from holdfast.features.moves.operations import mover
from holdfast.stores.forwarding import of_schema, with_login, with_schema, without_login, without_password
from tests.support.postgres_databases import TemplateDatabases
from tests.support.stores import put, spec

pytestmark = pytest.mark.req("HF-1")


@pytest.fixture
def ends(
    request: pytest.FixtureRequest, postgres_databases: TemplateDatabases, tmp_path: Path
) -> Iterator[tuple[str, str]]:
    here, there = request.param.split("-")
    source = request.getfixturevalue(f"{here}_url")
    with closing(open_store(source)) as store:
        store.migrate()
        put(store, spec())
    if there == "sqlite":
        yield source, f"sqlite:///{tmp_path}/moved.db"
        return
    with postgres_databases.fresh() as target:
        yield source, target


every_direction = pytest.mark.parametrize(
    "ends", ["sqlite-postgres", "postgres-sqlite", "postgres-postgres", "sqlite-sqlite"], indirect=True
)


def move(source: str, target: str, **options: str) -> None:
    with mover(source, target, announced=target, **options) as moving:
        moving.run()


@every_direction
def test_first_call_works(ends: tuple[str, str]) -> None:
    move(*ends)
    with closing(App(ends[0])) as app:
        learns(app, ends)
        job = app.enqueue("mail", {})
    with closing(App(ends[0])) as app:
        learns(app, ends)
        assert app.jobs.get(job.id).kind == "mail"


def learns(app: App, ends: tuple[str, str]) -> None:
    """From a server to a file, the first call raises an error that is worth another attempt."""
    if ends[0].startswith("postgres") and ends[1].startswith("sqlite"):
        with pytest.raises(StoreUnavailable) as refused:
            app.enqueue("mail", {})
        assert refused.value.code == "database_moved"


@every_direction
def test_first_call_of_a_coroutine_works(ends: tuple[str, str]) -> None:
    move(*ends)

    async def enqueue() -> str:
        app = App(ends[0])
        try:
            try:
                return (await app.aenqueue("mail", {})).id
            except StoreUnavailable:
                if not ends[0].startswith("postgres"):
                    raise
            return (await app.aenqueue("mail", {})).id
        finally:
            await app.aclose()

    job = asyncio.run(enqueue())
    with closing(open_store(ends[1])) as store:
        assert store.run(store.jobs.get(job, "default")) is not None


@every_direction
def test_command_works(ends: tuple[str, str]) -> None:
    """Each is a new process."""
    move(*ends)
    done = None
    for arguments in (["enqueue", "mail", "{}"], ["jobs", "list", "--json"]):
        command = [sys.executable, "-m", "holdfast", *arguments]
        done = subprocess.run(
            command, env=os.environ | {"HOLDFAST_URL": ends[0]}, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
    assert done is not None
    assert len(json.loads(done.stdout)) == 2, done.stdout


def test_several_moves_are_followed_at_once(sqlite_url: str, postgres_databases: TemplateDatabases) -> None:
    with closing(open_store(sqlite_url)) as store:
        put(store, spec())
    with postgres_databases.fresh() as one, postgres_databases.fresh() as two, closing(App(sqlite_url)) as running:
        running.enqueue("mail", {})
        move(sqlite_url, one)
        move(one, two)
        for _ in range(2):
            with suppress(HoldfastError):  # the call that learns of a move between two stores
                running.enqueue("mail", {})
        job = running.enqueue("mail", {})
        with closing(App(sqlite_url)) as started:
            assert started.jobs.get(job.id).kind == "mail"


def test_moves_in_a_circle_are_an_error(sqlite_url: str, tmp_path: Path) -> None:
    target = f"sqlite:///{tmp_path}/moved.db"
    with closing(open_store(sqlite_url)) as store:
        put(store, spec())
    with mover(sqlite_url, target, announced=sqlite_url) as moving:  # a wrong URL
        moving.run()
    with closing(App(sqlite_url)) as app, pytest.raises(StoreError) as refused:
        app.enqueue("mail", {})
    assert refused.value.code == "move_circle"
    assert refused.value.fix


def test_dry_run_checks_the_target(sqlite_url: str, empty_postgres_url: str) -> None:
    """An empty database is good, and stays empty; another one is refused as by the move."""
    with closing(open_store(sqlite_url)) as store:
        put(store, spec())

    def dry_run() -> bool:
        with mover(sqlite_url, empty_postgres_url) as moving:
            return moving.estimate().target_exists

    assert not dry_run()
    with closing(psycopg.connect(empty_postgres_url, autocommit=True)) as connection:
        assert connection.execute("select to_regnamespace('holdfast')").fetchone() == (None,)
        with closing(open_store(empty_postgres_url, follows=False)) as there:
            there.migrate()
            assert dry_run()
            put(there, spec())
        with pytest.raises(InvalidSetting) as full:
            dry_run()
        assert full.value.code == "move_target_not_empty"
        connection.execute("delete from holdfast.migration where name = 'code'")
        with pytest.raises(SchemaMismatch) as other:
            dry_run()
        assert other.value.code == "move_other_release"


@pytest.mark.parametrize("ends", ["sqlite-postgres", "postgres-sqlite"], indirect=True)
def test_followers_open_the_schema_of_the_target(ends: tuple[str, str], empty_postgres_url: str) -> None:
    """The address has it: programs of a file know no schema."""
    if ends[0].startswith("postgres"):  # between two servers; the schemas of both sides are the same
        with closing(open_store(empty_postgres_url, schema="other")) as store:
            store.migrate()
            put(store, spec())
        with mover(empty_postgres_url, ends[1], schema="other") as moving:
            moving.run()
        source = empty_postgres_url
        with closing(open_store(source, schema="other", follows=False)) as old:
            assert old.moved_to() == ends[1]
        return
    source, target = ends[0], empty_postgres_url
    move(source, target, schema="other")
    with closing(App(source)) as app:
        job = app.enqueue("mail", {})
    with closing(open_store(target, schema="other")) as store:
        assert store.run(store.jobs.get(job.id, "default")) is not None


def test_addresses_of_a_move() -> None:
    plain = "postgresql://ada:secret@db:5433/jobs?password=more&sslmode=require&user=eve"
    assert without_password(plain) == "postgresql://ada@db:5433/jobs?sslmode=require&user=eve"
    assert without_login(plain) == "postgresql://db:5433/jobs?sslmode=require"
    for url in ("postgresql://db/jobs", "postgresql://ada@db/jobs?sslmode=require"):
        assert with_schema(url, "holdfast") == url
        assert of_schema(url) == (url, "holdfast")
        assert of_schema(with_schema(url, "other")) == (url, "other")


def test_programs_keep_their_login(postgres_url: str, postgres_databases: TemplateDatabases) -> None:
    """Between servers the address has no login: each program has its own."""
    with closing(open_store(postgres_url)) as store:
        put(store, spec())
    with postgres_databases.fresh() as target:
        with mover(postgres_url, target) as moving:
            moving.run()
        with closing(open_store(postgres_url, follows=False)) as old:
            told = old.moved_to()
        assert told == without_login(target)
        assert with_login(told, "postgresql://web:word@old/jobs") == target.replace(
            target.split("//")[1].split("@")[0], "web:word"
        )
        assert with_login(told, "postgresql://web@old/jobs").startswith("postgresql://web@")
        with closing(App(postgres_url)) as app:
            app.enqueue("mail", {})


def test_move_of_a_moved_source_names_the_new_database(sqlite_url: str, tmp_path: Path) -> None:
    target = f"sqlite:///{tmp_path}/moved.db"
    with closing(open_store(sqlite_url)) as store:
        put(store, spec())
    move(sqlite_url, target)
    with mover(sqlite_url, f"sqlite:///{tmp_path}/more.db") as moving, pytest.raises(StoreUnavailable) as refused:
        moving.run()
    assert target in f"{refused.value} {refused.value.fix}"
    assert refused.value.fix is not None
    assert "Try again" not in refused.value.fix
