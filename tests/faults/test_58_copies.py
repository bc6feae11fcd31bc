"""A database is copied under load, in each way that PostgreSQL and SQLite have, and goes on as the copy: no consumer
skips an event or reads one twice, whatever the original did since (HF-14, fault 58)."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

from holdfast.engine.job import EVERY_TENANT
from holdfast.errors import HoldfastError
from holdfast.features.assembly import Store, open_store
from holdfast.features.audit.operations import Audit
from holdfast.stores.session import Session
from tests.faults.copies import NO_SETTINGS, PAGE, Load, Servers, caught_up, dump, loaded, position, replicate
from tests.support.ledger import check_ledger, events_by_number
from tests.support.postgres_binaries import debian_bin
from tests.support.postgres_server import PostgresServer
from tests.support.stores import open_lease, put_one, work
from tests.support.transactions import Transaction
from tests.support.waiting import until

pytestmark = pytest.mark.req("HF-14", "DP-12")


@pytest.fixture
def servers() -> Iterator[Servers]:
    with Servers() as servers:
        yield servers


def seal(store: Store) -> None:
    while store.run(store.audit.seal("test")):
        pass


def refusals(store: Store) -> set[str]:
    """What a copy that was not adopted says to a producer, a worker and a reader."""
    codes = set()
    for use in (put_one, open_lease, lambda store: store.run(store.ledger.read(None, 1, EVERY_TENANT))):
        with pytest.raises(HoldfastError) as refused:
            use(store)
        codes.add(refused.value.code)
    return codes


def goes_on(url: str, load: Load, outside: str, *, origin: str, lost: bool = True) -> None:
    """Adopt the copy, let a consumer of the original continue in it, and check what it has read. `outside` is a cursor
    that a reader keeps elsewhere, read from the original after the copy was made."""
    with closing(open_store(url)) as copy:
        report = copy.run(copy.restores.report())
        assert report.origin == origin
        if origin == "copied":
            before = report.last_event
            assert refusals(copy) == {"copy_not_adopted"}
            assert copy.run(copy.restores.report()).last_event == before
        copy.run(copy.restores.adopt("tester"))
        assert copy.run(copy.restores.report()).origin in ("here", "unknown")

        cursor = position(copy)
        assert cursor is not None
        copied = load.seen[: load.read_until[cursor]]
        consumer = Load(copy, list(copied))
        late = Transaction(copy) if copy.url.startswith("postgres") else None
        unfinished = late.enqueue(3) if late else []
        new = [put_one(copy) for _ in range(PAGE)]
        work(copy, want=3)
        while consumer.consume():
            pass
        if late:
            late.end()
        while consumer.consume():
            pass
        events = events_by_number(copy)
        assert sorted(consumer.seen) == [event.seq for event in events]
        assert (max(load.seen) > (report.last_event or 0)) is lost, "whether the original went on"
        fresh = [event.seq for event in events if event.seq > (report.last_event or 0)]
        assert {*new, *unfinished} <= {event.job_id for event in events if event.seq in fresh}
        assert sorted(read_from(copy, outside)) == fresh
        check_ledger(copy)
        seal(copy)
        assert Audit(Session(copy, tenant=EVERY_TENANT, name="tests", actor="tester")).verify().ok


def read_from(store: Store, cursor: str) -> list[int]:
    seen = []
    while page := store.run(store.ledger.read(cursor, PAGE, EVERY_TENANT)):
        seen += [event.seq for event in page]
        cursor = page[-1].cursor
    return seen


def end_of(store: Store) -> str:
    return store.run(store.ledger.end(EVERY_TENANT))


def check_dump(original: PostgresServer, copy: PostgresServer) -> None:
    with loaded(original.dsn("app")) as load:
        late = Transaction(load.store)
        late.enqueue(3)
        seal(load.store)
        dump(original, copy)
        late.end()
        load.finish()
        goes_on(copy.dsn("app"), load, end_of(load.store), origin="copied")


@pytest.mark.slow
def test_dump(servers: Servers) -> None:
    check_dump(servers.original(), servers.new())


@pytest.mark.slow
def test_dump_of_an_older_server(servers: Servers) -> None:
    programs = debian_bin()
    if programs is None:
        pytest.skip("no PostgreSQL server from the system's packages is installed")
    check_dump(servers.original(programs=programs), servers.new())


@pytest.mark.slow
def test_dump_of_a_dump(servers: Servers) -> None:
    """Each copy is adopted; positions rise through both."""
    original, copy, second = servers.original(), servers.new(), servers.new()
    dump(original, copy)
    with closing(open_store(copy.dsn("app"))) as store:
        store.run(store.restores.adopt("tester"))
    check_dump(copy, second)


@pytest.mark.slow
def test_logical_replication(servers: Servers) -> None:
    original, copy = servers.original(), servers.new()
    with loaded(original.dsn("app")) as load:
        seal(load.store)
        replicate(original, copy)
        with psycopg.connect(original.dsn("app"), autocommit=True) as source:  # the copy has no table for it
            source.execute("set search_path = holdfast")
            newest = "select time_of(p.high) as t from event_partition p order by p.high desc limit 1"
            source.execute(f"select make_partition(t, t + interval '1 day') from ({newest}) n".encode())
        load.finish()
        caught_up(original, copy)
        with closing(open_store(copy.dsn("app"))) as store, pytest.raises(HoldfastError) as refused:
            store.run(store.restores.adopt("tester"))
        assert refused.value.code == "copy_in_use"
        with psycopg.connect(copy.dsn("app"), autocommit=True) as target:
            target.execute("drop subscription copied")
            without = "select name from holdfast.event_partition where to_regclass('holdfast.' || name) is null"
            assert len(target.execute(without).fetchall()) == 1
        goes_on(copy.dsn("app"), load, end_of(load.store), origin="copied", lost=False)
        with psycopg.connect(copy.dsn("app"), autocommit=True) as target:
            assert target.execute(without).fetchall() == []


@pytest.mark.slow
def test_upgrade_of_the_server(servers: Servers) -> None:
    """pg_upgrade keeps the transaction counter: nothing has to be adopted."""
    programs = debian_bin()
    if programs is None:
        pytest.skip("no PostgreSQL server from the system's packages is installed")
    original, copy = servers.original(programs=programs), servers.new()
    with loaded(original.dsn("app")) as load:
        load.finish()
        outside = end_of(load.store)
    original.stop()
    folders = [f"--old-datadir={original.data}", f"--new-datadir={copy.data}"]
    copy.run("pg_checksums", "--disable", f"--pgdata={copy.data}")
    bins = [f"--old-bindir={original.programs}", f"--new-bindir={copy.programs}"]
    folder = copy.make_folder()
    copy.run("pg_upgrade", "--username=postgres", *folders, *bins, f"--socketdir={folder}", folder=folder)
    copy.password = original.password
    copy.start()
    with closing(open_store(copy.dsn("app"))) as store:
        assert store.run(store.restores.report()).origin == "here"
        put_one(store)
        last = store.run(store.restores.report()).last_event
        assert read_from(store, outside) == [last]
        outside = end_of(store)
    goes_on(copy.dsn("app"), load, outside, origin="here", lost=False)


def base_backup(
    servers: Servers, original: PostgresServer, settings: Mapping[str, str] = NO_SETTINGS
) -> PostgresServer:
    copy = servers.restored(original, settings)
    copy.run("pg_basebackup", f"--pgdata={copy.data}", f"--dbname={original.dsn()}", "--checkpoint=fast")
    return copy


@pytest.mark.parametrize("way", ["backup", "vacuum"])
def test_copy_of_a_sqlite_file(sqlite_url: str, tmp_path: Path, way: str) -> None:
    path = tmp_path / "copy.db"
    with loaded(sqlite_url) as load:
        seal(load.store)
        with closing(sqlite3.connect(sqlite_url.removeprefix("sqlite:///"))) as source:
            if way == "vacuum":
                source.execute("vacuum into ?", (str(path),))
            else:
                with closing(sqlite3.connect(path)) as target:
                    source.backup(target, pages=20)
        load.finish()
        goes_on(f"sqlite:///{path}", load, end_of(load.store), origin="unknown")


@pytest.mark.slow
def test_base_backup(servers: Servers) -> None:
    """Without recovery to a target the server stays on its timeline: the copy cannot be told from the original."""
    original = servers.original()
    with loaded(original.dsn("app")) as load:
        seal(load.store)
        copy = base_backup(servers, original)
        load.finish()
        copy.start()
        goes_on(copy.dsn("app"), load, end_of(load.store), origin="here")


@pytest.mark.slow
def test_recovery_to_a_point_in_time(servers: Servers, tmp_path: Path) -> None:
    original = servers.new(settings={"archive_mode": "on"})
    archive = original.archive()
    servers.prepare(original)
    with loaded(original.dsn("app")) as load:
        restore = {"restore_command": f"cp {archive}/%f %p", "recovery_target_name": "here"}
        copy = base_backup(servers, original, restore | {"recovery_target_action": "promote"})
        load.wait_for_more()
        seal(load.store)
        late = Transaction(load.store)
        late.enqueue(3)
        with original.session() as session:
            session.execute("select pg_create_restore_point('here')")
        load.wait_for_more()
        late.end()
        load.finish()
        with psycopg.connect(original.dsn(), autocommit=True) as session:
            session.execute("select pg_switch_wal()")
            archived = (
                "select 1 from pg_stat_archiver where last_archived_wal >= pg_walfile_name(pg_current_wal_lsn() - 1)"
            )
            until(lambda: session.execute(archived).fetchall(), "the log is archived")
        (copy.data / "recovery.signal").touch()
        copy.start()
        with psycopg.connect(copy.dsn(), autocommit=True) as session:
            promoted = "select 1 where not pg_is_in_recovery()"
            until(lambda: session.execute(promoted).fetchall(), "the copy is promoted")
        with closing(open_store(copy.dsn("app"))) as store:
            put_one(store)  # work goes on before the copy is adopted
        goes_on(copy.dsn("app"), load, end_of(load.store), origin="recovered")
