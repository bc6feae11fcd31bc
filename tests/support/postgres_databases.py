"""A fresh PostgreSQL database per test.

One template is migrated once. A test gets a copy of it, or a database that another test has used and that was reset,
which is less than half the work of dropping it and copying another.

A reset trusts the server's counters, not the test. If the test changed the catalog (a table, a function, a grant,
statistics) or a setting of the database, the database is dropped. Otherwise changed tables are emptied and get the rows
of the template again, and sequences are set back. The database gets another name each time, so that a client that
outlives its test finds no database, as if it had been dropped.
"""

from __future__ import annotations

import itertools
import os
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass

import psycopg
from psycopg import sql

from tests.support.sql_coverage import note_calls

# The statistics view is not used: planning it takes longer than the whole reset. Shared catalogs are left out, because
# they count changes of every database.
_TOUCHED = """
    select oid::regclass::text, is_catalog, changes
      from (select oid, relnamespace in ('pg_catalog'::regnamespace, 'information_schema'::regnamespace) as is_catalog,
                   pg_stat_get_tuples_inserted(oid) + pg_stat_get_tuples_updated(oid)
                   + pg_stat_get_tuples_deleted(oid) as changes
              from pg_class where relkind = 'r' and not relisshared) counted
     where changes > 0
"""
_TABLES = """
    select oid::regclass::text from pg_class
     where relkind = 'r' and relnamespace not in ('pg_catalog'::regnamespace, 'information_schema'::regnamespace)
"""
_SEQUENCES = "select oid::regclass::text from pg_class where relkind = 'S'"

# A crashed server has lost its counters; then this time differs.
_STATS_RESET = "select stats_reset::text from pg_stat_bgwriter"
_TERMINATE = "select pg_terminate_backend(pid) from pg_stat_activity where datname = %s"
_UNCHANGED_SETTINGS = """
    select datallowconn and datconnlimit = -1 and datacl is null and not datistemplate
           and not exists (select from pg_db_role_setting where setdatabase = d.oid)
      from pg_database d where datname = %s
"""

# Truncating recreates all files of a table; up to this number of changes, deleting the rows is faster.
_FEW_ROWS = 500
# Each reset leaves dead rows behind.
_MAX_USES = 50


# Shared by all instances, so that no two databases of a run have the same name.
_numbers = itertools.count(1)


class Databases(ABC):
    """A server on which databases can be created and dropped."""

    version: int

    def __init__(self) -> None:
        # Kept open: connecting for each database would cost more than creating it.
        self._session: psycopg.Connection[object] | None = None
        self._lock = threading.Lock()
        # In memory, copying files is about half the work of a copy through the log. On a disk its checkpoints take
        # time, and an external server may be too old for the option.
        self._copies_files = False
        # Only on a server that the tests started: no one else resets its counters, and the tests are superuser.
        self.reuses = False

    @abstractmethod
    def dsn(self, dbname: str = "postgres", *, user: str | None = None, password: str | None = None) -> str:
        """A URL for the database."""

    def create_database(self, name: str, *, template: str | None = None) -> str:
        """Create a database, empty or a copy of `template` (which must have no connections); return its URL."""
        statement = sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name))
        if template is not None:
            statement += sql.SQL(" TEMPLATE {}").format(sql.Identifier(template))
            if self._copies_files:
                statement += sql.SQL(" STRATEGY file_copy")
        self._execute(statement)
        return self.dsn(name)

    def drop_database(self, name: str) -> None:
        """Drop a database, its connections included."""
        self._execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name)))

    def disconnect(self) -> None:
        """Close the kept connection; the next statement opens another."""
        with self._lock:
            session, self._session = self._session, None
            if session is not None:
                session.close()

    def _execute(self, statement: sql.Composed) -> None:
        with self.session() as session:
            session.execute(statement)

    @contextmanager
    def session(self) -> Iterator[psycopg.Connection[object]]:
        """The kept connection, for one thread at a time."""
        with self._lock:
            if self._session is None or self._session.closed or not _answers(self._session):
                self._session = psycopg.connect(self.dsn(), autocommit=True)
            yield self._session


def _answers(session: psycopg.Connection[object]) -> bool:
    """Whether the connection works: tests stop servers."""
    try:
        session.execute("select")
    except psycopg.OperationalError:
        session.close()
        return False
    return True


def make_template(dsn: str) -> None:
    """Migrate an empty database. No connection stays open: a template in use cannot be copied."""
    from holdfast.features.assembly import open_store

    with closing(open_store(dsn)) as store:
        store.migrate()


@dataclass
class _Used:
    """A database in use, with its number of uses and the time since which the server counts."""

    name: str
    stats_reset: object
    uses: int = 1


@dataclass(frozen=True)
class _Template:
    """Rows and sequence positions of the template."""

    rows: dict[str, bytes]
    sequences: dict[str, tuple[int, bool]]


def _read_template(dsn: str) -> _Template:
    with psycopg.connect(dsn) as connection:
        rows = {}
        for (table,) in connection.execute(_TABLES).fetchall():
            with connection.cursor().copy(f"copy {table} to stdout".encode()) as out:
                if data := b"".join(out):
                    rows[table] = data
        sequences = {}
        for (name,) in connection.execute(_SEQUENCES).fetchall():
            row = connection.execute(f"select last_value, is_called from {name}".encode()).fetchone()
            assert row is not None
            sequences[name] = (int(row[0]), bool(row[1]))
    return _Template(rows, sequences)


def _disconnect_all(session: psycopg.Connection[object], name: str) -> bool:
    """Terminate every connection to the database; whether all have ended."""
    for _ in range(500):
        if not session.execute(_TERMINATE, (name,)).fetchall():
            return True
        time.sleep(0.005)
    return False


def _reset(dsn: str, template: _Template) -> bool:
    """Reset a database, as superuser and with no other connection. False if it must be dropped instead."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        rows = connection.execute(_TOUCHED).fetchall()
        if any(is_catalog for _, is_catalog, _ in rows):
            return False
        touched = {table: changes for table, _, changes in rows}
        statements = ["set local session_replication_role = replica"]  # triggers would refuse these changes
        statements += [
            f"{'delete from' if changes <= _FEW_ROWS else 'truncate'} {table}" for table, changes in touched.items()
        ]
        statements += [
            f"select setval('{name}', {value}, {called})" for name, (value, called) in template.sequences.items()
        ]
        with connection.transaction():
            connection.execute("; ".join(statements).encode())
            for table in template.rows.keys() & touched.keys():
                with connection.cursor().copy(f"copy {table} from stdin".encode()) as into:
                    into.write(template.rows[table])
        # The reset itself is counted too: flush the counters, then clear them.
        connection.execute("select pg_stat_force_next_flush()")
        connection.execute("select pg_stat_reset()")
    return True


class TemplateDatabases:
    """Creates databases on one server: `fresh()` is migrated, `empty()` is not."""

    def __init__(self, server: Databases, migrate: Callable[[str], None] = make_template) -> None:
        self._server = server
        self._migrate = migrate
        # The pid separates several test runs on one external server.
        self._prefix = f"holdfast_test_{os.getpid()}"
        self._template: str | None = None
        self._template_data: _Template | None = None
        self._spare: list[_Used] = []

    @contextmanager
    def fresh(self) -> Iterator[str]:
        template = self._migrated_template()
        if not self._server.reuses:
            with self._database(template=template) as dsn:
                yield dsn
            return
        used = self._take(template)
        try:
            yield self._server.dsn(used.name)
        finally:
            self._give_back(used)

    @contextmanager
    def empty(self) -> Iterator[str]:
        with self._database(template=None) as dsn:
            yield dsn

    def close(self) -> None:
        while self._spare:
            self._server.drop_database(self._spare.pop().name)
        if self._template is not None:
            self._server.drop_database(self._template)
            self._template = None

    @contextmanager
    def _database(self, *, template: str | None) -> Iterator[str]:
        name = f"{self._prefix}_{next(_numbers)}"
        dsn = self._server.create_database(name, template=template)
        try:
            yield dsn
        finally:
            note_calls(dsn)
            self._server.drop_database(name)

    def _take(self, template: str) -> _Used:
        """A database that was reset, or a new one."""
        with self._server.session() as session:
            stats_reset = session.execute(_STATS_RESET).fetchone()
            if self._spare:
                used = self._spare.pop()
                used.stats_reset, used.uses = stats_reset, used.uses + 1
                return used
        used = _Used(f"{self._prefix}_{next(_numbers)}", stats_reset)
        self._server.create_database(used.name, template=template)
        return used

    def _give_back(self, used: _Used) -> None:
        """Reset a database for the next test, or drop it."""
        try:
            reusable = used.uses < _MAX_USES and self._try_reset(used)
        except psycopg.Error:  # depends on what the test did to the database or the server
            reusable = False
        if reusable:
            self._spare.append(used)
        else:
            note_calls(self._server.dsn(used.name))
            self._server.drop_database(used.name)

    def _try_reset(self, used: _Used) -> bool:
        assert self._template_data is not None
        new = f"{self._prefix}_{next(_numbers)}"
        with self._server.session() as session:
            if session.execute(_STATS_RESET).fetchone() != used.stats_reset or session.execute(
                _UNCHANGED_SETTINGS, (used.name,)
            ).fetchone() != (True,):
                return False
            if not _disconnect_all(session, used.name):
                return False
            rename = sql.SQL("alter database {} rename to {}")
            session.execute(rename.format(sql.Identifier(used.name), sql.Identifier(new)))
            used.name = new
        note_calls(self._server.dsn(new))
        return _reset(self._server.dsn(new), self._template_data)

    def _migrated_template(self) -> str:
        if self._template is None:
            name = f"{self._prefix}_template_{next(_numbers)}"
            dsn = self._server.create_database(name)
            try:
                self._migrate(dsn)
                if self._server.reuses:
                    self._template_data = _read_template(dsn)
            except BaseException:
                self._server.drop_database(name)
                raise
            self._template = name
        return self._template
