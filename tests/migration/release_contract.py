"""What a release needs of a schema, and what of it another schema does not offer.

`Names` are derived from the code of the release: the words of its strings, of which SQL and calls consist. `offers`
reads a catalogue. `missing` compares the schema that the release installed with a later one: each function that the
release names or that a role may call, and each table, view, column and index that it names. `statements` are the
statements that the release contains as a whole.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, field

import psycopg
from psycopg import sql

from holdfast.stores.sqlite.connections import database_path
from tests.support.postgres_roles import ROLES
from tests.support.sqlite_names import PREFIX

_WORD = re.compile(r"[\w\0]+")
_STATEMENT = re.compile(r"\s*(select|insert|update|delete|with)\b", re.IGNORECASE)
_PARAMETER = re.compile(r"\?\d*|(?<![:\w]):[a-z_]\w*")
_PLACEHOLDER = re.compile(r"\{(\w+)\}")


class Names:
    """The words of a release. A word with a part that is filled in while it runs stands for all that fit."""

    def __init__(self, texts: Iterable[str]) -> None:
        found = {word for text in texts for word in _WORD.findall(text)}
        self._words = {word for word in found if "\0" not in word}
        # Of a filled part alone nothing can be said, so some letters must remain.
        filled = {word for word in found if "\0" in word and len(word.replace("\0", "").removeprefix(PREFIX)) > 3}
        self._filled = re.compile("|".join(sorted(word.replace("\0", r"\w*") for word in filled)))

    def __contains__(self, name: object) -> bool:
        bare = str(name).removeprefix(PREFIX)
        return bool(bare in self._words or PREFIX + bare in self._words or self._filled.fullmatch(bare))


@dataclass(frozen=True)
class Function:
    arguments: tuple[str, ...]
    """Names and types."""
    optional: int
    """How many of them have a default: the last ones."""
    result: str
    callers: frozenset[str]
    """The roles that may call it."""

    def serves(self, other: Function, alone: bool) -> bool:
        """Whether every call of `other` calls this one, with the same result. A new argument needs a default, and no
        second function may have the name."""
        more = len(self.arguments) - len(other.arguments)
        return (
            self.result == other.result
            and self.arguments[: len(other.arguments)] == other.arguments
            and self.optional >= other.optional + more
            and (more == 0 or alone)
            and self.callers >= other.callers
        )


@dataclass(frozen=True)
class Column:
    type: str
    nullable: bool
    filled: bool
    """Whether a row that is inserted without it is accepted: it is nullable, or has a default."""
    readers: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Offer:
    functions: dict[str, list[Function]] = field(default_factory=dict)
    relations: dict[str, dict[str, Column]] = field(default_factory=dict)
    """Tables and views with their columns in order."""
    views: frozenset[str] = frozenset()
    indexes: frozenset[str] = frozenset()


def offers(url: str, schema: str = "holdfast") -> Offer:
    return _of_sqlite(url) if url.startswith("sqlite:") else _of_postgres(url, schema)


def _of_sqlite(url: str) -> Offer:
    with closing(sqlite3.connect(database_path(url))) as connection:
        kinds = dict(
            connection.execute("select name, type from sqlite_schema where type in ('table', 'view')").fetchall()
        )
        relations = {
            str(name): {
                column: Column(kind, not (needed or key), bool(not needed or default is not None or hidden))
                for _, column, kind, needed, default, key, hidden in connection.execute(f"pragma table_xinfo({name})")
            }
            for name in kinds
        }
        indexes = connection.execute("select name from sqlite_schema where type = 'index'").fetchall()
    return Offer(
        {},
        relations,
        frozenset(name for name, kind in kinds.items() if kind == "view"),
        frozenset(str(name) for (name,) in indexes),
    )


_FUNCTIONS = """
    select p.proname,
           array(select format('%%s %%s', p.proargnames[a.n], format_type(a.type, null))
                   from unnest(p.proargtypes) with ordinality a(type, n) order by a.n),
           p.pronargdefaults,
           format('%%s %%s %%s', case when p.proretset then 'setof' end, format_type(p.prorettype, null), coalesce(
               (select string_agg(format('%%s %%s', r.attname, format_type(r.atttypid, null)), ', ' order by r.attnum)
                  from pg_attribute r where r.attrelid = t.typrelid and r.attnum > 0 and not r.attisdropped),
               (select string_agg(format('%%s %%s', p.proargnames[o.n], format_type(o.type, null)), ', ' order by o.n)
                  from unnest(p.proallargtypes) with ordinality o(type, n) where p.proargmodes[o.n] <> 'i'))),
           array(select r.rolname::text from pg_roles r
                  where r.rolname = any(%(roles)s) and has_function_privilege(r.oid, p.oid, 'execute'))
      from pg_proc p join pg_type t on t.oid = p.prorettype
     where p.pronamespace = %(schema)s::regnamespace"""
_COLUMNS = """
    select c.relname, c.relkind, a.attname, format_type(a.atttypid, a.atttypmod), not a.attnotnull,
           not a.attnotnull or a.atthasdef or a.attidentity <> '',
           array(select r.rolname::text from pg_roles r
                  where r.rolname = any(%(roles)s) and has_column_privilege(r.oid, c.oid, a.attnum, 'select'))
      from pg_class c join pg_attribute a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
     where c.relnamespace = %(schema)s::regnamespace and c.relkind in ('r', 'p', 'v') and not c.relispartition
     order by c.relname, a.attnum"""


def _of_postgres(url: str, schema: str) -> Offer:
    functions: dict[str, list[Function]] = {}
    relations: dict[str, dict[str, Column]] = {}
    views: set[str] = set()
    params = {"schema": schema, "roles": list(ROLES)}
    with psycopg.connect(url) as connection:
        connection.execute(sql.SQL("set search_path = {}").format(sql.Identifier(schema)))
        for name, arguments, optional, result, callers in connection.execute(_FUNCTIONS, params):
            functions.setdefault(name, []).append(Function(tuple(arguments), optional, result, frozenset(callers)))
        for name, kind, column, text, nullable, filled, readers in connection.execute(_COLUMNS, params):
            relations.setdefault(name, {})[column] = Column(text, nullable, filled, frozenset(readers))
            if kind in ("v", b"v"):
                views.add(name)
    return Offer(functions, relations, frozenset(views))


def missing(was: Offer, now: Offer, names: Names) -> list[str]:
    """What the release needs and `now` does not offer, as sentences."""
    return [*_missing_functions(was, now, names), *_missing_relations(was, now, names)]


def needed_functions(was: Offer, names: Names) -> dict[str, list[Function]]:
    return {
        name: overloads
        for name, overloads in was.functions.items()
        if name in names or any(each.callers for each in overloads)
    }


def _missing_functions(was: Offer, now: Offer, names: Names) -> Iterator[str]:
    for name, overloads in sorted(needed_functions(was, names).items()):
        ours = now.functions.get(name, [])
        for function in overloads:
            if not any(each.serves(function, alone=len(ours) == 1) for each in ours):
                what = f"function {name}({', '.join(function.arguments)}) returning {function.result.strip()}"
                yield f"{what} is {f'now {ours}' if ours else 'gone'}"


def _missing_relations(was: Offer, now: Offer, names: Names) -> Iterator[str]:
    for relation, columns in sorted(was.relations.items()):
        if relation not in names:
            continue
        ours = now.relations.get(relation)
        if ours is None:
            yield f"{relation} is gone"
            continue
        if (relation in was.views) != (relation in now.views):
            yield f"{relation} is a {'view' if relation in now.views else 'table'} now"
        for name, column in columns.items():
            if name in names and not _serves(ours.get(name), column):
                yield f"column {relation}.{name} was {column} and is {ours.get(name, 'gone')}"
        for name in ours.keys() - columns.keys():
            if relation not in now.views and not ours[name].filled:
                yield f"new column {relation}.{name} has neither null nor a default"
    for index in sorted(was.indexes - now.indexes):
        if index in names:
            yield f"index {index} is gone"


def _serves(now: Column | None, was: Column) -> bool:
    return (
        now is not None
        and now.type == was.type
        and now.nullable <= was.nullable
        and now.filled >= was.filled
        and now.readers >= was.readers
    )


def statements(texts: Iterable[str]) -> list[str]:
    """The texts that look like a statement of SQLite, with null for each parameter."""
    whole = sorted({text for text in texts if "\0" not in text and _STATEMENT.match(text)})
    return [_PARAMETER.sub("NULL", _PLACEHOLDER.sub(rf"{PREFIX}\1", text)) for text in whole]


def refused(url: str, texts: Iterable[str]) -> dict[str, str]:
    """The statements that cannot be prepared in a SQLite file, with the error."""
    errors: dict[str, str] = {}
    with closing(sqlite3.connect(database_path(url))) as connection:
        for text in texts:
            try:
                connection.execute(f"explain {text}")
            except sqlite3.Error as error:
                errors[text] = str(error)
    return errors
