"""The private database of a kit: created and removed with it, without any effect on the app's own database."""

from __future__ import annotations

import asyncio
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

from holdfast import App, State
from holdfast.app.internals import schema_of, session_of
from holdfast.errors import Conflict, HoldfastError, InvalidSetting, StoreUnavailable
from holdfast.stores.sqlite.connections import database_path
from holdfast.testing import Kit
from tests.kit import shop
from tests.support.processes import free_port
from tests.support.waiting import until

pytestmark = pytest.mark.req("HF-7")


def test_app_database_is_restored(kit_url: str | None) -> None:
    own = session_of(shop.app).store
    with Kit(shop.app, kit_url) as kit:
        assert session_of(shop.app).store is not own
        assert kit.url == session_of(shop.app).store.url != shop.OWN_URL
        assert shop.app.jobs.get(shop.send_receipt.enqueue("ada@example.com", 1).id) is not None
    assert session_of(shop.app).store is own
    assert (session_of(shop.app).store.url, schema_of(shop.app)) == (shop.OWN_URL, "holdfast")
    with pytest.raises(StoreUnavailable):
        shop.send_receipt.enqueue("ada@example.com", 1)


def test_app_database_is_restored_after_an_error(kit_url: str | None) -> None:
    with pytest.raises(ZeroDivisionError), Kit(shop.app, kit_url):
        raise ZeroDivisionError
    assert session_of(shop.app).store.url == shop.OWN_URL


@pytest.mark.slow
def test_tests_do_not_see_each_others_jobs(kit_url: str | None) -> None:
    for _ in range(2):
        with Kit(shop.app, kit_url) as kit:
            kit.assert_not_enqueued()
            shop.send_receipt.using(key="once").enqueue("ada@example.com", 1)
            assert kit.drain().states == {"succeeded": 1}


def test_sqlite_file_is_removed() -> None:
    with Kit(shop.app) as kit:
        path = Path(database_path(kit.url))
        shop.send_receipt.enqueue("ada@example.com", 1)
        assert path.exists()
    assert not path.parent.exists()


def test_in_memory_database_works_without_child_processes() -> None:
    with closing(App(shop.OWN_URL, name="small")) as app:

        @app.job()
        def add(a: int, b: int) -> int:
            return a + b

        with Kit(app, "sqlite:///:memory:") as kit:
            assert kit.run(add, 1, 2) == 3


def schemas(url: str) -> set[str]:
    with psycopg.connect(url) as connection:
        rows = connection.execute("select nspname from pg_namespace where nspname like 'holdfast%'").fetchall()
    return {row[0] for row in rows}


@pytest.mark.slow
def test_postgres_schema_is_removed_and_others_are_untouched(postgres_url: str) -> None:
    with Kit(shop.app, postgres_url) as kit:
        kit.travel("1d")
        shop.send_receipt.enqueue("ada@example.com", 1)
        kit.drain()
        assert len(schemas(postgres_url)) == 2
    assert schemas(postgres_url) == {"holdfast"}
    with closing(App(postgres_url)) as app:
        assert app.jobs.list() == []
        with psycopg.connect(postgres_url) as connection:
            assert connection.execute("select shift, stopped from holdfast.clock").fetchone() is not None
        assert session_of(app).run(session_of(app).store.jobs.counts("*")) == {}


@pytest.mark.slow
def test_no_connection_outlives_its_kit(postgres_url: str) -> None:
    """This includes connections of a test's event loop, which is closed before the kit."""

    async def use(kit: Kit) -> None:
        handle = await shop.send_receipt.aenqueue("ada@example.com", 1)
        await kit.adrain()
        assert await handle == "receipt 1 for ada@example.com"

    loop = asyncio.new_event_loop()
    with Kit(shop.app, postgres_url) as kit:
        loop.run_until_complete(use(kit))
        loop.close()
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        query = "select count(*) from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()"
        until(lambda: connection.execute(query).fetchone() == (0,), "no other connection is open", 10.0)


@pytest.mark.slow
def test_kit_can_use_the_database_of_the_app(postgres_url: str) -> None:
    """The URL is the same; only the schema differs."""
    with closing(App(postgres_url, name="same")) as app:

        @app.job()
        def noted() -> None: ...

        with Kit(app, postgres_url) as kit:
            noted.enqueue()
            assert kit.drain().attempts == 1
            with pytest.raises(Conflict):
                Kit(app).__enter__()
        assert app.jobs.list() == []


@pytest.mark.slow
def test_open_transaction_is_an_error_and_does_not_hang(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.testing.database.DROP_TIMEOUT", "200ms")
    kit = Kit(shop.app, postgres_url)
    with psycopg.connect(postgres_url) as connection:
        with pytest.raises(HoldfastError, match="lock timeout"), kit:
            shop.send_receipt.using(connection=connection).enqueue("ada@example.com", 1)
        assert session_of(shop.app).store.url == shop.OWN_URL


@pytest.mark.slow
def test_jobs_can_be_enqueued_in_a_transaction_of_the_test(kit: Kit, kit_url: str | None) -> None:
    """A connection to the kit's database, as a program has one to its own."""
    connection = sqlite3.connect(database_path(kit.url)) if kit_url is None else psycopg.connect(kit.url)
    with closing(connection):
        shop.send_receipt.using(connection=connection).enqueue("ada@example.com", 1)
        assert kit.enqueued() == []
        connection.commit()
    assert kit.drain().states == {"succeeded": 1}


@pytest.mark.slow
def test_real_worker_runs_jobs_of_the_kit(kit: Kit) -> None:
    handle = shop.send_receipt.enqueue("ada@example.com", 1)
    shop.app.run_worker(burst=True, queues=("mail",))
    assert handle.state() is State.SUCCEEDED


def test_app_can_have_only_one_kit(kit: Kit) -> None:
    with pytest.raises(Conflict, match="already belongs to a kit") as refused, Kit(shop.app):
        pass
    assert refused.value.code == "kit_open"
    shop.send_receipt.enqueue("ada@example.com", 1)
    assert kit.drain().attempts == 1, "the first kit still works"


@pytest.mark.slow
def test_two_apps_can_have_one_kit_each(kit: Kit, kit_url: str | None) -> None:
    with closing(App(shop.OWN_URL, name="other")) as other, Kit(other, kit_url) as second:

        @other.job()
        def send_receipt(to: str, order: int) -> str:
            return "another"

        assert second.run(send_receipt, "ada@example.com", 1) == "another"
        assert kit.run(shop.send_receipt, "ada@example.com", 1) == "receipt 1 for ada@example.com"
        assert len(second.enqueued()) == len(kit.enqueued()) == 1


@pytest.mark.slow
def test_kit_can_only_be_used_inside_its_block(kit_url: str | None) -> None:
    kit = Kit(shop.app, kit_url)
    with kit:
        kit.drain()
    for use in (
        kit.drain,
        kit.now,
        kit.enqueued,
        lambda: kit.url,
        lambda: kit.run(shop.refuse),
        lambda: kit.history("x"),
    ):
        with pytest.raises(Conflict, match="not open") as refused:
            use()
        assert refused.value.code == "kit_closed"
    with kit:
        kit.assert_not_enqueued()


def test_unreachable_server_is_reported_once() -> None:
    with (
        pytest.raises(StoreUnavailable) as unreachable,
        Kit(shop.app, f"postgresql://user@127.0.0.1:{free_port()}/none"),
    ):
        pass
    assert unreachable.value.__context__ is unreachable.value.__cause__, (
        "one error, without a second one from the cleanup"
    )
    assert session_of(shop.app).store.url == shop.OWN_URL


@pytest.mark.parametrize("url", ["sqlite:///jobs.db", "sqlite:////tmp/jobs.db", "mysql://x", "jobs.db", ""])
def test_urls_that_are_not_private_are_refused(url: str) -> None:
    with pytest.raises(InvalidSetting, match="private") as refused, Kit(shop.app, url):
        pass
    assert refused.value.code == "not_private"
    assert session_of(shop.app).store.url == shop.OWN_URL


UNCHANGED = """
import asyncio, datetime, logging, os, signal, sys, threading, time, warnings

def global_state():
    signals = [signal.getsignal(number) for number in signal.valid_signals()]
    return (
        dict(os.environ), os.getcwd(), signals, sys.excepthook, threading.excepthook, threading.active_count(),
        logging.root.level, list(logging.root.handlers), list(warnings.filters), list(sys.path), list(sys.meta_path),
        time.time, time.monotonic, datetime.datetime, asyncio.run, sys.getrecursionlimit(),
    )

import holdfast, holdfast.stores.sqlite.store
before, app = global_state(), dict(vars(holdfast.App))
import holdfast.testing
assert global_state() == before
assert dict(vars(holdfast.App)) == app
assert "pytest" not in sys.modules
"""


@pytest.mark.slow
def test_import_has_no_side_effects() -> None:
    command = [sys.executable, "-c", UNCHANGED]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


WITHOUT_EXTRAS = """
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"psycopg", "psycopg_pool", "pydantic", "typer", "rich", "starlette", "fastapi"}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Blocked())

import holdfast
from holdfast.testing import Kit

app = holdfast.App("sqlite:///:memory:")

@app.job
def double(n: int) -> int:
    return 2 * n

with Kit(app) as kit:
    handle = double.enqueue(4)
    kit.drain()
    assert handle.result() == 8
try:
    with Kit(app, "postgresql://localhost/shop"):
        pass
except holdfast.errors.InvalidSetting as error:
    assert error.code == "missing_extra", error
else:
    raise AssertionError("not refused")
"""


@pytest.mark.req("DP-22", "HF-8")
def test_it_needs_no_extra_for_sqlite() -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT_EXTRAS], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
