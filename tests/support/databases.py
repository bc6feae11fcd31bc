"""A fresh PostgreSQL database per test, cheaply: one template is migrated once, every test gets a copy, or one that was
made as new after another test (`resetting.py`)."""

from __future__ import annotations

import itertools
import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager

import psycopg
from psycopg import sql

from tests.support.resetting import (
    MOMENT,
    MOST_USES,
    SETTINGS,
    Beginnings,
    Used,
    beginnings,
    leave_alone,
    make_as_new,
    renaming,
)
from tests.support.sql_coverage import note_calls

# Shared by all, so that no two databases of one run have the same name.
_numbers = itertools.count(1)


class Databases(ABC):
    """What every server can do, whoever started it: make and drop databases."""

    version: int

    def __init__(self) -> None:
        # Kept open: to connect for each database that is made and dropped would cost more than making it.
        self._session: psycopg.Connection[object] | None = None
        self._turn = threading.Lock()
        # In memory it is about half the work of a copy through the log. On a disk its checkpoints would be waited for,
        # and a server that is not ours may be too old to know the word.
        self._copies_files = False
        # Only on a server of our own: there nobody else resets what is counted, and we are a superuser.
        self.reuses = False

    @abstractmethod
    def dsn(self, dbname: str = "postgres", *, user: str | None = None, password: str | None = None) -> str:
        """A URL for that database."""

    def create_database(self, name: str, *, template: str | None = None) -> str:
        """Create a database, empty or a copy of `template` (which nobody may be using); returns its URL."""
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
        """Let go of the connection that is kept; the next statement makes another."""
        with self._turn:
            session, self._session = self._session, None
            if session is not None:
                session.close()

    def _execute(self, statement: sql.Composed) -> None:
        with self.session() as session:
            session.execute(statement)

    @contextmanager
    def session(self) -> Iterator[psycopg.Connection[object]]:
        """The connection that is kept, for one at a time."""
        with self._turn:
            if self._session is None or self._session.closed or not _answers(self._session):
                self._session = psycopg.connect(self.dsn(), autocommit=True)
            yield self._session


def _answers(session: psycopg.Connection[object]) -> bool:
    """Whether it is still there: tests stop servers."""
    try:
        session.execute("select")
    except psycopg.OperationalError:
        session.close()
        return False
    return True


def make_template(dsn: str) -> None:
    """Bring an empty database to the current schema.

    No connection may stay open: a template in use cannot be copied.
    """
    from holdfast.features.assembly import open_store

    with closing(open_store(dsn)) as store:
        store.migrate()


class TemplateDatabases:
    """Makes databases on one server: `fresh()` is migrated, `empty()` is not."""

    def __init__(self, server: Databases, migrate: Callable[[str], None] = make_template) -> None:
        self._server = server
        self._migrate = migrate
        # The pid keeps several test runs on one given server apart.
        self._prefix = f"holdfast_test_{os.getpid()}"
        self._template: str | None = None
        self._beginnings: Beginnings | None = None
        self._spare: list[Used] = []

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

    def _take(self, template: str) -> Used:
        """One that is as new, or a new one."""
        with self._server.session() as session:
            moment = session.execute(MOMENT).fetchone()
            if self._spare:
                used = self._spare.pop()
                used.moment, used.uses = moment, used.uses + 1
                return used
        used = Used(f"{self._prefix}_{next(_numbers)}", moment)
        self._server.create_database(used.name, template=template)
        return used

    def _give_back(self, used: Used) -> None:
        """Make it as new for the next test, or drop it."""
        try:
            kept = used.uses < MOST_USES and self._is_as_new(used)
        except psycopg.Error:  # whatever a test has done to it or to the server
            kept = False
        if kept:
            self._spare.append(used)
        else:
            note_calls(self._server.dsn(used.name))
            self._server.drop_database(used.name)

    def _is_as_new(self, used: Used) -> bool:
        assert self._beginnings is not None
        new = f"{self._prefix}_{next(_numbers)}"
        with self._server.session() as session:
            if session.execute(MOMENT).fetchone() != used.moment or session.execute(
                SETTINGS, (used.name,)
            ).fetchone() != (True,):
                return False
            if not leave_alone(session, used.name):
                return False
            session.execute(renaming(used.name, new))
            used.name = new
        note_calls(self._server.dsn(new))
        return make_as_new(self._server.dsn(new), self._beginnings)

    def _migrated_template(self) -> str:
        if self._template is None:
            name = f"{self._prefix}_template_{next(_numbers)}"
            dsn = self._server.create_database(name)
            try:
                self._migrate(dsn)
                if self._server.reuses:
                    self._beginnings = beginnings(dsn)
            except BaseException:
                self._server.drop_database(name)
                raise
            self._template = name
        return self._template
