"""A PostgreSQL database that a test has used, made as new: less than half the work of dropping it and copying another.

Nothing is believed of what a test has done; the server has counted it. A test that touched the catalog (a table, a
function, a grant, statistics) or a setting of the database leaves it altered, and it is dropped as ever. Tables with
any change are emptied and get the rows of the template again, sequences stand where the template's do. The name is
another each time, so that whoever is left over from a test finds no database, as if it had been dropped.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import psycopg
from psycopg import sql

# Not from the view of the statistics, whose plan would take longer to make than all of this. The catalogs that all
# databases share count what happens to any of them.
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

# A server that has crashed has forgotten what it had counted. Then this moment is another.
MOMENT = "select stats_reset::text from pg_stat_bgwriter"
SESSIONS = "select pg_terminate_backend(pid) from pg_stat_activity where datname = %s"
SETTINGS = """
    select datallowconn and datconnlimit = -1 and datacl is null and not datistemplate
           and not exists (select from pg_db_role_setting where setdatabase = d.oid)
      from pg_database d where datname = %s
"""

# To truncate a table makes all its files anew; up to here it is less work to delete the rows.
_FEW = 500
# What was deleted or truncated leaves rows behind that nobody sees any more.
MOST_USES = 50


@dataclass
class Used:
    """A database in use: how often it has been, and what the server's memory began with."""

    name: str
    moment: object
    uses: int = 1


@dataclass(frozen=True)
class Beginnings:
    """What the template has in its tables and where its sequences stand."""

    rows: dict[str, bytes]
    sequences: dict[str, tuple[int, bool]]


def beginnings(dsn: str) -> Beginnings:
    with psycopg.connect(dsn) as connection:
        rows = {}
        for (table,) in connection.execute(_TABLES).fetchall():
            with connection.cursor().copy(f"copy {table} to stdout".encode()) as out:
                if data := b"".join(out):
                    rows[table] = data
        sequences = {}
        for (name,) in connection.execute(_SEQUENCES).fetchall():
            found = connection.execute(f"select last_value, is_called from {name}".encode()).fetchone()
            assert found is not None
            sequences[name] = (int(found[0]), bool(found[1]))
    return Beginnings(rows, sequences)


def leave_alone(session: psycopg.Connection[object], name: str) -> bool:
    """End whoever is connected; whether all have gone."""
    for _ in range(500):
        if not session.execute(SESSIONS, (name,)).fetchall():
            return True
        time.sleep(0.005)
    return False


def make_as_new(dsn: str, begin: Beginnings) -> bool:
    """As a superuser, with nobody else connected. Whether it is as new; otherwise it is to be dropped."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        found = connection.execute(_TOUCHED).fetchall()
        if any(is_catalog for _, is_catalog, _ in found):
            return False
        touched = {table: changes for table, _, changes in found}
        statements = ["set local session_replication_role = replica"]  # the triggers refuse what is done here
        statements += [f"{'delete from' if few <= _FEW else 'truncate'} {table}" for table, few in touched.items()]
        statements += [
            f"select setval('{name}', {value}, {called})" for name, (value, called) in begin.sequences.items()
        ]
        with connection.transaction():
            connection.execute("; ".join(statements).encode())
            for table in begin.rows.keys() & touched.keys():
                with connection.cursor().copy(f"copy {table} from stdin".encode()) as into:
                    into.write(begin.rows[table])
        # What was done here is counted as well: first that is told, then all of it is forgotten.
        connection.execute("select pg_stat_force_next_flush()")
        connection.execute("select pg_stat_reset()")
    return True


def renaming(name: str, new: str) -> sql.Composed:
    return sql.SQL("alter database {} rename to {}").format(sql.Identifier(name), sql.Identifier(new))
