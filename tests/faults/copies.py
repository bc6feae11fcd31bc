"""A ledger under load while it is copied, and the ways to copy a database of PostgreSQL."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psycopg

from holdfast.engine.job import EVERY_TENANT
from holdfast.features.assembly import Store, open_store
from tests.support.postgres_server import PostgresServer
from tests.support.stores import put_one, work
from tests.support.waiting import until

NAME = "reader"
PAGE = 20
NO_SETTINGS: Mapping[str, str] = {}
SETTINGS = {"wal_level": "logical", "max_wal_senders": "8", "max_replication_slots": "8"}


@dataclass
class Load:
    """Programs that enqueue and run jobs, and a consumer that keeps its cursor in the database."""

    store: Store
    seen: list[int] = field(default_factory=list)
    """The numbers of the events that the consumer has read."""
    read_until: dict[str, int] = field(default_factory=dict)
    """For each cursor, how many events the consumer had read with it."""
    _stop: threading.Event = field(default_factory=threading.Event)
    _threads: list[threading.Thread] = field(default_factory=list)
    _failed: list[BaseException] = field(default_factory=list)

    def start(self) -> None:
        for duty in (self._produce, self._produce, self._work, self.consume):
            thread = threading.Thread(target=self._repeat, args=(duty,))
            self._threads.append(thread)
            thread.start()
        self.wait_for_more()

    def wait_for_more(self, events: int = 60) -> None:
        """Wait until the consumer has read so many more events."""
        enough = len(self.seen) + events
        until(lambda: self._failed or len(self.seen) >= enough, "the consumer has read more")

    def finish(self) -> None:
        """Let the programs go on for a while, stop them, and read what is left."""
        self.wait_for_more()
        self.stop()
        while self.consume():
            pass

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()
        assert not self._failed, self._failed

    def consume(self) -> bool:
        """Read a page and save the cursor. Returns whether there was any event."""
        cursor = position(self.store)
        page = self.store.run(self.store.ledger.read(cursor, PAGE, EVERY_TENANT))
        if not page:
            return False
        self.seen += [event.seq for event in page]
        self.read_until[page[-1].cursor] = len(self.seen)
        assert self.store.run(self.store.ledger.save_cursor(NAME, page[-1].cursor, cursor, EVERY_TENANT))
        return True

    def _repeat(self, duty: Callable[[], object]) -> None:
        try:
            while not self._stop.wait(0.005):  # so that the ledger stays small enough to compare
                duty()
        except BaseException as error:
            self._failed.append(error)

    def _produce(self) -> None:
        put_one(self.store)

    def _work(self) -> None:
        work(self.store, want=3)


@contextmanager
def loaded(url: str) -> Iterator[Load]:
    with closing(open_store(url)) as store:
        load = Load(store)
        try:
            load.start()
            yield load
        finally:
            load.stop()


def position(store: Store) -> str | None:
    consumers = store.run(store.consumers.list(EVERY_TENANT))
    return next((consumer.cursor for consumer in consumers if consumer.name == NAME), None)


class Servers(ExitStack):
    """PostgreSQL servers of a test, destroyed at its end."""

    def new(
        self, version: int = 18, *, programs: Path | None = None, settings: Mapping[str, str] = NO_SETTINGS
    ) -> PostgresServer:
        server = PostgresServer(version, programs=programs, in_memory=True, settings={**SETTINGS, **settings})
        self.callback(server.destroy)
        return server

    def original(self, *, programs: Path | None = None) -> PostgresServer:
        """A server with a migrated database, which has counted more transactions than a new server."""
        server = self.new(programs=programs)
        self.prepare(server)
        return server

    @staticmethod
    def prepare(server: PostgresServer) -> None:
        server.start()
        with closing(open_store(server.create_database("app"))) as store:
            store.migrate()
        with server.session() as session:
            session.execute(
                "do $$ begin for n in 1 .. 20000 loop perform pg_current_xact_id(); commit; end loop; end $$"
            )

    def restored(self, original: PostgresServer, settings: Mapping[str, str] = NO_SETTINGS) -> PostgresServer:
        """A server whose data directory is still empty; it will be filled with that of the original."""
        server = self.new(original.version, settings=settings)
        for path in sorted(server.data.rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()
        server.password = original.password
        return server


def dump(original: PostgresServer, copy: PostgresServer, *, rows: bool = True) -> None:
    """Restore a dump of the original on another server; as the guide says."""
    copy.start()
    folder = copy.make_folder()
    roles, app = folder / "roles.sql", folder / "app.dump"
    copy.run("pg_dumpall", "--roles-only", "--file", str(roles), "--dbname", original.dsn())
    copy.run("pg_dump", "--format=custom", *([] if rows else ["--schema-only"]), f"--file={app}", original.dsn("app"))
    copy.run("psql", "--quiet", "--file", str(roles), copy.dsn())
    copy.password = original.password  # the dump of the roles has brought it
    copy.create_database("app")
    copy.run("pg_restore", "--single-transaction", f"--dbname={copy.dsn('app')}", str(app))


def replicate(original: PostgresServer, copy: PostgresServer) -> None:
    """Begin to replicate; the copy has caught up when `caught_up` returns."""
    dump(original, copy, rows=False)
    with psycopg.connect(original.dsn("app"), autocommit=True) as source:
        source.execute(
            "create publication copied for tables in schema holdfast with (publish_via_partition_root = true)"
        )
    with psycopg.connect(copy.dsn("app"), autocommit=True) as target:
        target.execute(f"create subscription copied connection '{original.dsn('app')}' publication copied")


def caught_up(original: PostgresServer, copy: PostgresServer) -> None:
    with psycopg.connect(original.dsn("app"), autocommit=True) as source:
        reached = source.execute("select pg_current_wal_lsn()").fetchall()[0][0]
        behind = "select 1 from pg_replication_slots where slot_name = 'copied' and confirmed_flush_lsn >= %s"
        with psycopg.connect(copy.dsn("app"), autocommit=True) as target:
            waiting = "select 1 from pg_subscription_rel where srsubstate <> 'r'"
            until(lambda: not target.execute(waiting).fetchall(), "the tables are copied")
        until(lambda: source.execute(behind, (reached,)).fetchall(), "the copy has caught up")
