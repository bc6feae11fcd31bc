"""A database is moved between the stores with everything in it (HF-1)."""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, suppress
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import psycopg
import pytest
from psycopg.types.string import TextLoader

from holdfast import App
from holdfast.app.internals import session_of
from holdfast.engine.job import EVERY_TENANT
from holdfast.engine.times import EPOCH
from holdfast.features.assembly import open_store
from holdfast.features.moves.model import FILLED, NO_ID, OWN, STAY
from holdfast.features.moves.operations import Mover, mover
from tests.dashboard.scene import play
from tests.faults.copies import position
from tests.faults.test_58_copies import read_from
from tests.support.features import connect, seal, set_agent, subscribe, tell, verify, webhook
from tests.support.ledger import check_ledger
from tests.support.postgres_databases import TemplateDatabases
from tests.support.stores import put, spec, take, work

pytestmark = pytest.mark.req("HF-1")

DIRECTIONS = ["sqlite-postgres", "postgres-sqlite", "postgres-postgres", "sqlite-sqlite"]
LEDGER = {"event", "action", "ledger_epoch", "seal"}


@pytest.fixture
def ends(
    request: pytest.FixtureRequest, postgres_databases: TemplateDatabases, tmp_path: Path
) -> Iterator[tuple[str, str]]:
    here, there = request.param.split("-")
    source = request.getfixturevalue(f"{here}_url")
    if there == "sqlite":
        yield source, f"sqlite:///{tmp_path}/moved.db"
        return
    with postgres_databases.fresh() as target:
        yield source, target


every_direction = pytest.mark.parametrize("ends", DIRECTIONS, indirect=True)


def fill(url: str) -> None:
    """Something in many tables."""
    with closing(App(url)) as app:
        play(app)
        store = session_of(app).store
        app.tenants.set("acme", max_pending=1000, weight=2)
        app.tokens.issue("robot", roles=["operator"])
        app.retention.set(clean_after="30d", kind="part")
        webhook(store)
        connect(store)
        subscribe(store, "all", "job.succeeded", "follow.up")
        set_agent(store)
        app.limits.set(queue="busy", rate="5/m")
        app.kinds.set("part", "A part.")
        app.payload_rules.set("a.kind", forbidden=["password"], signal_only=True)
        app.queues.set_aging("default", every="1m")
        put(store, spec("other.kind", key="once", tags=("a", 'b"\\c', "é")), tenant="acme")
        put(store, spec("other.kind", uses=("key:a",), run_at=datetime(2031, 1, 1, 0, 0, 0, 7, tzinfo=UTC)))
        work(store, want=3)
        put(store, spec("running"))
        take(store)
        tell(store, "paid", '{"n": 1.5, "text": "line\\nbreak\\t\\\\N"}')
        events = store.run(store.ledger.read(None, 5, EVERY_TENANT))
        assert store.run(store.ledger.save_cursor("reader", events[-1].cursor, None, EVERY_TENANT))
        store.run(store.usage.count(begin=True))
        seal(store)
        put(store, spec("other.kind"), tenant="acme")


def contents(url: str) -> dict[str, Counter[str]]:
    """The rows of every table that is moved, in a form that both stores share."""
    with closing(connect_to(url)) as connection:
        if url.startswith("sqlite"):
            names = connection.execute(
                "select substr(name, 10) from sqlite_schema where type = 'table' and name like 'holdfast%'"
            ).fetchall()
            prefix = "holdfast_"
        else:
            connection.execute("set search_path = holdfast")
            names = connection.execute(
                "select c.relname from pg_class c where relnamespace = 'holdfast'::regnamespace"
                " and relkind in ('r', 'p') and not relispartition"
            ).fetchall()
            prefix = ""
        found = {}
        for (name,) in names:
            if name not in STAY and not name.startswith(("lock_", "move_")):
                cursor = connection.execute(f"select * from {prefix}{name}")
                columns = [each[0] for each in cursor.description]
                found[name] = Counter(plain(name, columns, row) for row in cursor.fetchall())
        return found


def connect_to(url: str) -> Any:
    if url.startswith("sqlite"):
        return sqlite3.connect(url.removeprefix("sqlite:///"))
    connection = psycopg.connect(url, autocommit=True)
    connection.adapters.register_loader("json", TextLoader)
    connection.adapters.register_loader("jsonb", TextLoader)
    return connection


def plain(table: str, columns: list[str], row: tuple[Any, ...]) -> str:
    values = {}
    for column, value in zip(columns, row, strict=True):
        name = f"{table}.{column}"
        if name in FILLED or name in OWN or column in ("xid", "cursor"):
            continue
        if isinstance(value, datetime):
            value = (value - EPOCH) // timedelta(microseconds=1)
        elif isinstance(value, timedelta):
            value = value // timedelta(microseconds=1)
        elif isinstance(value, bytes | memoryview):
            value = bytes(value).hex()
        elif isinstance(value, date | UUID):
            value = str(value)
        elif isinstance(value, bool):
            value = int(value)
        elif isinstance(value, str) and value[:1] in "[{":
            with suppress(ValueError):
                value = json.loads(value)
        values[column] = NO_ID if name == "retention_pass.reached" and not value else value
    return json.dumps(values, sort_keys=True)


def move(source: str, target: str, **options: Any) -> Mover:
    with mover(source, target, **options) as moving:
        moving.run()
        return moving


@every_direction
def test_everything_comes_along(ends: tuple[str, str]) -> None:
    source, target = ends
    fill(source)
    before = contents(source)
    move(source, target)
    after = contents(target)
    only = {"login_pin", "unsure_wait"}
    assert {name for name in before if name not in only} == {name for name in after if name not in only}
    empty = [name for name, rows in before.items() if not rows]
    print(len(before), "tables; empty:", empty)
    for name, rows in before.items():
        new = after.get(name, Counter()) - rows
        if name in ("action", "ledger_epoch", "seal"):  # of the move itself
            assert new.total() <= 1, (name, new)
            new = Counter()
        assert (rows - after.get(name, Counter()), new) == (Counter(), Counter()), name
    with closing(open_store(target)) as store:
        check_ledger(store)
        put(store, spec("new"))
        work(store, want=5)
        seal(store)
        assert verify(store).flaws == ()
        cursor = position(store)
        assert cursor is not None
        events = sorted(event.seq for event in store.run(store.ledger.read(None, 1000, EVERY_TENANT)))
        assert sorted(read_from(store, cursor)) == events[5:]
