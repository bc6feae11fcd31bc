"""PostgreSQL databases whose schema is owned by an ordinary role, and URLs that act as a role.

Row-level security does not apply to superusers, so tests that run as one prove nothing about it. These databases are
migrated and used by a role without privileges: a wrong policy or a missing grant fails here.
"""

from __future__ import annotations

import itertools
import os
from contextlib import closing
from urllib.parse import parse_qsl, quote, urlencode, urlsplit, urlunsplit

import psycopg
from psycopg import sql
from typing_extensions import override

from holdfast.features.assembly import open_store
from tests.support.postgres_databases import Databases, TemplateDatabases

ROLES = ("holdfast_viewer", "holdfast_producer", "holdfast_executor", "holdfast_approver", "holdfast_admin")


def as_role(url: str, role: str) -> str:
    """The same database, with every session acting as `role`."""
    parts = urlsplit(url)
    query = [*parse_qsl(parts.query), ("options", f"-c role={role}")]
    return urlunsplit(parts._replace(query=urlencode(query, quote_via=quote)))


def ensure_roles(connection: psycopg.Connection[object], *names: str) -> None:
    """Create the roles that do not exist yet: roles belong to the server, which tests share."""
    for name in names:
        if not connection.execute("select 1 from pg_roles where rolname = %s", (name,)).fetchone():
            connection.execute(sql.SQL("create role {} nologin").format(sql.Identifier(name)))


_NUMBERS = itertools.count()


class OwnedDatabases(TemplateDatabases):
    """Fresh databases whose schema was migrated by `owner`, who is not a superuser."""

    def __init__(self, server: Databases) -> None:
        super().__init__(server, self._migrate_as_owner)
        self.owner = f"holdfast_owner_{os.getpid()}_{next(_NUMBERS)}"

    def _migrate_as_owner(self, dsn: str) -> None:
        name = urlsplit(dsn).path.lstrip("/")
        with psycopg.connect(dsn, autocommit=True) as connection:
            ensure_roles(connection, self.owner, *ROLES)
            grant = sql.SQL("grant create on database {} to {}")
            connection.execute(grant.format(sql.Identifier(name), sql.Identifier(self.owner)))
        with closing(open_store(as_role(dsn, self.owner))) as store:
            store.migrate()

    @override
    def close(self) -> None:
        super().close()
        with psycopg.connect(self._server.dsn(), autocommit=True) as connection:
            connection.execute(sql.SQL("drop role if exists {}").format(sql.Identifier(self.owner)))
