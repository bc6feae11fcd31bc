"""A database is moved between the stores with everything in it (HF-1)."""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from uuid import UUID

import psycopg
import pytest
from psycopg.types.string import TextLoader

from holdfast import App
from holdfast.app.internals import session_of
from holdfast.engine.job import EVERY_TENANT
from holdfast.engine.times import EPOCH
from holdfast.errors import Conflict, HoldfastError, SchemaMismatch, StoreError, StoreUnavailable
from holdfast.features.assembly import open_store
from holdfast.features.moves.model import CONVERTED, FILLED, NO_ID, ONE_STORE, OWN, STAY, Shape, tables
from holdfast.features.moves.operations import Mover, mover
from holdfast.features.moves.postgres import PostgresSide
from holdfast.stores.forwarding import with_login
from tests.dashboard.scene import play
from tests.faults.copies import position
from tests.faults.test_58_copies import read_from
from tests.support.features import anchor, connect, seal, set_agent, subscribe, tell, verify, webhook
from tests.support.ledger import check_ledger
from tests.support.postgres_databases import TemplateDatabases
from tests.support.postgres_roles import OwnedDatabases, as_role, ensure_roles
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
    connection.execute("set holdfast.tenant = '*'")
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


@pytest.mark.slow
def test_there_and_back_again(sqlite_url: str, postgres_databases: TemplateDatabases, tmp_path: Path) -> None:
    """The chain of seals continues across each move: an anchor of the first database holds in the last."""
    fill(sqlite_url)
    with closing(open_store(sqlite_url)) as store:
        first = anchor(store)
    with postgres_databases.fresh() as one, postgres_databases.fresh() as two:
        url, anchors = sqlite_url, [first]
        for target in (one, f"sqlite:///{tmp_path}/back.db", two):
            move(url, target)
            url = target
            with closing(open_store(url)) as store:
                put(store, spec("other.kind"))
                work(store, want=2)
                seal(store)
                assert verify(store, anchors).flaws == ()
                anchors.append(anchor(store))
                check_ledger(store)


@pytest.mark.slow
@pytest.mark.parametrize("ends", DIRECTIONS[:3], indirect=True)
def test_owner_who_is_no_superuser(
    ends: tuple[str, str], postgres_server: Any, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """Row-level security applies to the owner, on both sides."""
    databases = OwnedDatabases(postgres_server)
    try:
        with databases.fresh() as one, databases.fresh() as two:
            owned = iter([as_role(one, databases.owner), as_role(two, databases.owner)])
            source, target = (next(owned) if url.startswith("postgres") else url for url in ends)
            fill(source)
            before = contents(source)["job_state"]
            move(source, target, announced=target)
            assert contents(target)["job_state"] == before
            with closing(open_store(target)) as store:
                seal(store)
                assert verify(store).flaws == ()
    finally:
        databases.close()


@pytest.mark.slow
def test_old_database_names_the_new_one(sqlite_url: str, tmp_path: Path) -> None:
    """Programs follow: those that were running when they write, others when they start."""
    target = f"sqlite:///{tmp_path}/moved.db"
    with closing(App(sqlite_url)) as running, closing(open_store(sqlite_url, follows=False)) as old:
        running.enqueue("mail", {})
        move(sqlite_url, target)
        job = running.enqueue("mail", {})
        with pytest.raises(StoreUnavailable) as refused:
            put(old, spec())
        assert refused.value.code == "database_moved"
        assert old.moved_to() == target
    with closing(App(sqlite_url)) as started:
        assert started.jobs.get(job.id).kind == "mail"


@pytest.mark.slow
def test_pinned_logins_stay_pinned(postgres_url: str, postgres_databases: TemplateDatabases) -> None:
    compiled = "select p.prosrc from pg_proc p where p.proname = 'pinned_tenant'"
    with closing(connect_to(postgres_url)) as connection, postgres_databases.fresh() as target:
        connection.execute("insert into holdfast.login_pin values ('web', 'acme', 'ada', now())")
        source = connection.execute(compiled).fetchall()
        assert "acme" in str(source)
        move(postgres_url, target)
        with closing(connect_to(target)) as there:
            assert there.execute(compiled).fetchall() == source


@pytest.mark.slow
def test_cursor_of_a_file_is_valid_on_the_server(sqlite_url: str, empty_postgres_url: str) -> None:
    """Readers may keep their cursors elsewhere."""
    fill(sqlite_url)
    with closing(open_store(sqlite_url)) as store:
        cursor = store.run(store.ledger.read(None, 3, EVERY_TENANT))[-1].cursor
        events = {event.seq for event in store.run(store.ledger.read(cursor, 1000, EVERY_TENANT))}
    move(sqlite_url, empty_postgres_url)
    with closing(open_store(empty_postgres_url)) as store:
        for kept in (cursor, f"{cursor};7"):
            assert events <= set(read_from(store, kept))


@pytest.mark.slow
def test_no_partition_is_purged_meanwhile(postgres_url: str, tmp_path: Path) -> None:
    """A purge truncates a partition of the ledger, which nothing could note."""
    change = "update holdfast.event_partition set announced = 1"
    with (
        mover(postgres_url, f"sqlite:///{tmp_path}/moved.db") as moving,
        closing(connect_to(postgres_url)) as connection,
    ):
        moving.at = stop_at("noting")
        with pytest.raises(KeyboardInterrupt):
            moving.run()
        with pytest.raises(psycopg.OperationalError, match="no partition is purged"):
            connection.execute(change)
        moving.abort()
        with pytest.raises(psycopg.DatabaseError, match="must be announced first"):  # another guard
            connection.execute(change)


def test_passwords_are_not_announced(postgres_url: str, sqlite_url: str) -> None:
    side = PostgresSide(open_store(postgres_url, follows=False), ExitStack())  # type: ignore[arg-type]
    password = urlsplit(postgres_url).password
    assert password is not None
    assert password not in side.announced
    assert with_login(side.announced, postgres_url) == postgres_url
    assert with_login(side.announced, sqlite_url) == side.announced
    side.store.close()


@pytest.mark.slow
def test_mover_that_was_replaced_stores_nothing(sqlite_url: str, tmp_path: Path) -> None:
    """A mover that was suspended while another one took over."""
    fill(sqlite_url)
    target = f"sqlite:///{tmp_path}/moved.db"
    with mover(sqlite_url, target) as slow, mover(sqlite_url, target) as quick:
        quick.at = stop_at("range")

        def at(point: str) -> None:
            if point == "prepared":
                with suppress(KeyboardInterrupt):
                    quick.run(resume=True)

        slow.at = at
        with pytest.raises(Conflict) as refused:
            slow.run()
    assert refused.value.code == "move_taken_over"
    found = contents(target)
    assert found["job"]
    assert not found["job_state"], "the slow mover stored rows"
    with mover(sqlite_url, target) as last:
        last.run(resume=True)
    with closing(open_store(target)) as store:
        assert verify(store).flaws == ()


def test_estimate_changes_nothing(sqlite_url: str, tmp_path: Path) -> None:
    fill(sqlite_url)
    before = contents(sqlite_url)
    target = tmp_path / "moved.db"
    with mover(sqlite_url, f"sqlite:///{target}") as moving:
        estimate = moving.estimate()
    assert estimate.rows["job"] == before["job"].total()
    assert not estimate.target_exists
    assert not target.exists()
    assert contents(sqlite_url) == before


def full(url: str) -> str:
    with closing(open_store(url)) as store:
        store.migrate()
        put(store, spec())
    return url


@pytest.fixture
def bad(
    request: pytest.FixtureRequest, tmp_path: Path, postgres_databases: TemplateDatabases
) -> Iterator[tuple[str, str]]:
    """A source and a target that cannot be moved."""
    sqlite, new = f"sqlite:///{tmp_path}/source.db", f"sqlite:///{tmp_path}/new.db"
    match request.param:
        case "no_database":
            yield f"sqlite:///{tmp_path}/none.db", new
        case "move_same_database":
            yield full(sqlite), f"sqlite:///{tmp_path}/./source.db"
        case "move_in_memory":
            yield full(sqlite), "sqlite:///:memory:"
        case "move_target_not_empty file":
            yield full(sqlite), full(new)
        case "move_target_not_empty server":
            with postgres_databases.fresh() as target:
                yield full(sqlite), full(target)
        case "move_other_release":
            with postgres_databases.fresh() as target:
                with closing(connect_to(target)) as connection:
                    connection.execute("delete from holdfast.migration where name = 'code'")
                yield full(sqlite), target
        case "move_not_owner":
            with postgres_databases.fresh() as target:
                with closing(connect_to(target)) as connection:
                    ensure_roles(connection, "holdfast_admin")
                yield full(sqlite), as_role(target, "holdfast_admin")
        case "move_encoding":
            with closing(sqlite3.connect(tmp_path / "new.db")) as connection:
                connection.execute("pragma encoding = 'UTF-16'")
                connection.execute("create table other (a)")
            yield full(sqlite), new
        case _:
            yield full(sqlite), new


@pytest.mark.every_case
@pytest.mark.parametrize(
    "bad",
    [
        *("no_database", "move_same_database", "move_in_memory", "move_target_not_empty file"),
        *("move_target_not_empty server", "move_other_release", "move_not_owner", "move_encoding"),
    ],
    indirect=True,
)
def test_bad_input_changes_nothing(bad: tuple[str, str], request: pytest.FixtureRequest) -> None:
    source, target = bad
    code = request.node.callspec.params["bad"].split()[0]
    with pytest.raises(HoldfastError) as refused, mover(source, target) as moving:
        moving.run()
    assert refused.value.code == code
    assert refused.value.fix
    if code != "no_database":
        with closing(open_store(source, follows=False)) as store:
            put(store, spec())
        with mover(source, target) as moving:
            assert moving.source.mark() is None


@pytest.mark.slow
def test_only_one_move_at_a_time(sqlite_url: str, tmp_path: Path) -> None:
    fill(sqlite_url)
    target = f"sqlite:///{tmp_path}/moved.db"
    for action in ("resume", "abort"):
        with pytest.raises(Conflict) as refused, mover(sqlite_url, target) as moving:
            moving.run(resume=True) if action == "resume" else moving.abort()
        assert refused.value.code == "move_unknown"
    with mover(sqlite_url, target) as moving:
        moving.at = stop_at("copied")
        with pytest.raises(KeyboardInterrupt):
            moving.run()
    for url in (target, f"sqlite:///{tmp_path}/other.db"):
        with pytest.raises(Conflict) as refused, mover(sqlite_url, url) as moving:
            moving.run()
        assert refused.value.code == "move_under_way"
    with mover(sqlite_url, target) as moving:
        moving.run(resume=True)
    with pytest.raises(StoreUnavailable) as gone, mover(sqlite_url, f"sqlite:///{tmp_path}/other.db") as moving:
        moving.run()
    assert gone.value.code == "database_moved"


def stop_at(point: str) -> Callable[[str], None]:
    def at(reached: str) -> None:
        if reached == point:
            raise KeyboardInterrupt

    return at


def test_no_table_is_forgotten(sqlite_url: str, postgres_url: str) -> None:
    """Each table of each store is moved, or the model says why not; and it knows how to convert each type."""
    with mover(sqlite_url, postgres_url) as moving:
        here, there = moving.source.shapes(), moving.target.shapes()
    moved = tables(here, there, 1)
    names = {table.name for table in moved}
    for name in here.keys() | there.keys():
        assert name in names or name in STAY or name in ONE_STORE or name.startswith("lock_"), name
    assert (STAY.keys() | ONE_STORE.keys()) <= here.keys() | there.keys()
    types = {table.types[column] for table in moved for column in table.columns}
    assert types <= {*CONVERTED, *("text", "bigint", "integer", "smallint", "double precision", "bytea")}
    new = {"new_thing": Shape({"id": "uuid"}, ("id",))}
    assert "new_thing" in {table.name for table in tables({**here, **new}, {**there, **new}, 1)}
    with pytest.raises(SchemaMismatch, match="new_thing"):
        tables({**here, **new}, there, 1)
    wider = {"job": Shape({**here["job"].columns, "novel": "TEXT"}, ("id",))}
    with pytest.raises(SchemaMismatch, match=r"job\.novel"):
        tables({**here, **wider}, there, 1)


@pytest.mark.slow
def test_comparison_finds_a_wrong_row(sqlite_url: str, tmp_path: Path) -> None:
    fill(sqlite_url)
    path = tmp_path / "moved.db"

    def at(point: str) -> None:
        if point == "copied":
            with closing(sqlite3.connect(path)) as connection:
                connection.execute(
                    "update holdfast_job set queue = 'other' where id = (select min(id) from holdfast_job)"
                )
                connection.execute("delete from holdfast_job_tag")
                connection.commit()

    with mover(sqlite_url, f"sqlite:///{path}") as moving:
        moving.at = at
        with pytest.raises(StoreError, match="rows differ, such as job ") as refused:
            moving.run()
        assert refused.value.code == "move_differs"
        moving.abort()
    assert not path.exists()
    with closing(open_store(sqlite_url)) as store:
        put(store, spec())
