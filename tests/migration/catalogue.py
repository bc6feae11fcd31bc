"""The schema of a database as plain text, so that two databases can be compared line by line."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import psycopg
from psycopg import sql

from holdfast.stores.sqlite.connections import database_path
from tests.support.direct_sql import PostgresByHand, SqliteByHand, open_by_hand

Catalogue = dict[str, list[str]]

# One query per kind of object. Object ids and times are left out: they differ between databases.
_POSTGRES = {
    "columns": """
        select format('%%s.%%s %%s %%s default %%s', c.relname, a.attname, format_type(a.atttypid, a.atttypmod),
                      case when a.attnotnull then 'not null' end, pg_get_expr(d.adbin, d.adrelid))
          from pg_class c
          join pg_attribute a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
          left join pg_attrdef d on d.adrelid = c.oid and d.adnum = a.attnum
         where c.relnamespace = %(schema)s::regnamespace and c.relkind in ('r', 'p', 'v')""",
    "relations": """
        select format('%%s %%s rls %%s %%s %%s granted %%s', c.relkind, c.relname, c.relrowsecurity,
                      c.relforcerowsecurity, c.reloptions,
                      coalesce(c.relacl,
                               acldefault((case c.relkind when 'S' then 's' else 'r' end)::"char", c.relowner)))
          from pg_class c where c.relnamespace = %(schema)s::regnamespace and c.relkind <> 'i'""",
    "column grants": """
        select format('%%s.%%s granted %%s', c.relname, a.attname, a.attacl)
          from pg_class c join pg_attribute a on a.attrelid = c.oid
         where c.relnamespace = %(schema)s::regnamespace and a.attacl is not null""",
    "indexes": "select indexdef from pg_indexes where schemaname = %(schema)s",
    "constraints": """
        select format('%%s %%s %%s', conrelid::regclass, conname, pg_get_constraintdef(oid))
          from pg_constraint where connamespace = %(schema)s::regnamespace""",
    "triggers": """
        select format('%%s %%s', t.tgenabled, pg_get_triggerdef(t.oid))
          from pg_trigger t join pg_class c on c.oid = t.tgrelid
         where c.relnamespace = %(schema)s::regnamespace and not t.tgisinternal""",
    "functions": """
        select pg_get_functiondef(oid) || coalesce(proacl::text, '')
          from pg_proc where pronamespace = %(schema)s::regnamespace""",
    "views": """
        select format('%%s %%s', c.relname, pg_get_viewdef(c.oid))
          from pg_class c where c.relnamespace = %(schema)s::regnamespace and c.relkind = 'v'""",
    "policies": """
        select format('%%s %%s %%s %%s %%s %%s %%s', tablename, policyname, permissive, roles, cmd, qual, with_check)
          from pg_policies where schemaname = %(schema)s""",
    "comments": """
        select format('%%s %%s %%s', d.objoid::regclass, d.objsubid, d.description)
          from pg_description d join pg_class c on c.oid = d.objoid
         where d.classoid = 'pg_class'::regclass and c.relnamespace = %(schema)s::regnamespace
        union all
        select format('%%s %%s', d.objoid::regprocedure, d.description)
          from pg_description d join pg_proc p on p.oid = d.objoid
         where d.classoid = 'pg_proc'::regclass and p.pronamespace = %(schema)s::regnamespace""",
    "types": """
        select format('%%s %%s %%s', t.typname, t.typtype, format_type(t.typbasetype, t.typtypmod))
          from pg_type t where t.typnamespace = %(schema)s::regnamespace""",
}


def catalogue(url: str, schema: str = "holdfast") -> Catalogue:
    """The schema by kind of object; empty for an empty database."""
    definitions = _of_sqlite(url) if url.startswith("sqlite:") else _of_postgres(url, schema)
    return {kind: sorted(lines) for kind, lines in definitions.items() if lines}


def _of_sqlite(url: str) -> Catalogue:
    definitions: Catalogue = {}
    with closing(sqlite3.connect(database_path(url))) as connection:
        for kind, name, table, text in connection.execute("select type, name, tbl_name, sql from sqlite_schema"):
            definitions.setdefault(kind, []).append(f"{name} on {table}: {text}")
    return definitions


def _of_postgres(url: str, schema: str) -> Catalogue:
    with psycopg.connect(url) as connection:
        # A fixed search path, so that definitions name objects the same way.
        connection.execute("set search_path = pg_catalog")
        if connection.execute("select to_regnamespace(%s)::text", (schema,)).fetchone() != (schema,):
            return {}
        return {
            kind: [str(line) for (line,) in connection.execute(sql.SQL(query), {"schema": schema})]
            for kind, query in _POSTGRES.items()
        }


def applied(url: str, schema: str = "holdfast") -> dict[str, str]:
    """Names and digests of the applied migrations."""
    with closing(SqliteByHand(url) if url.startswith("sqlite:") else PostgresByHand(url, schema=schema)) as by_hand:
        return {str(name): str(digest) for name, digest in by_hand.execute("select name, digest from migration")}


def write(url: str, statement: str) -> None:
    """Run one statement, with tables named without a schema."""
    with closing(open_by_hand(url)) as by_hand:
        by_hand.execute(statement)
