"""From the code objects in a database to those of this release, without touching what is equal.

The release is installed into another schema, read and rolled back: what the server then describes is what the database
must have. Objects that have to make way are dropped before the tables change, those that depend on them with them, and
made again afterwards. Objects that no release installed are never dropped: if one is in the way, the migration fails.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace
from typing import TypeVar

from holdfast.stores.migrations import Execute, foreign_objects
from holdfast.stores.postgres.catalogue import INSTALLED_KINDS, PARTITIONS, Catalogue, CodeObject, read

T = TypeVar("T")

COMPILED = ("function pinned_tenant()",)
"""Functions made from rows (pins.sql). They are compared by nothing."""

_SCHEMA = "current_schema()::regnamespace"
# What depends on what: both as (class, oid) of the object that one would drop. A view is depended on through its row
# type, and depends through its rule.
_OWNERS = """
select 'pg_proc'::regclass::oid as class, p.oid,
       format('function %I(%s)', p.proname, oidvectortypes(p.proargtypes)) as name
  from pg_proc p where p.pronamespace = {schema}
union all
select k.class, k.oid, 'view ' || quote_ident(c.relname) from pg_class c
 cross join lateral (values ('pg_class'::regclass::oid, c.oid), ('pg_type'::regclass::oid, c.reltype)
    union all select 'pg_type'::regclass::oid, t.typarray from pg_type t where t.oid = c.reltype
    union all select 'pg_rewrite'::regclass::oid, r.oid from pg_rewrite r where r.ev_class = c.oid) k(class, oid)
 where c.relnamespace = {schema} and c.relkind = 'v'
union all
select 'pg_trigger'::regclass::oid, t.oid, format('trigger %I on %I', t.tgname, c.relname)
  from pg_trigger t join pg_class c on c.oid = t.tgrelid
 where c.relnamespace = {schema} and not t.tgisinternal and t.tgparentid = 0
union all
select 'pg_policy'::regclass::oid, p.oid, format('policy %I on %I', p.polname, c.relname)
  from pg_policy p join pg_class c on c.oid = p.polrelid where c.relnamespace = {schema}
union all
select 'pg_attrdef'::regclass::oid, d.oid, format('default %I.%I', c.relname, a.attname)
  from pg_attrdef d join pg_class c on c.oid = d.adrelid
  join pg_attribute a on a.attrelid = c.oid and a.attnum = d.adnum
 where c.relnamespace = {schema} and a.attgenerated = ''
""".replace("{schema}", _SCHEMA)
# (needed, dependent, description of the dependent): between objects of the schema, and from others to those.
_DEPENDENTS = f"""
select * from (
with owner as materialized ({_OWNERS})
select distinct n.name, o.name, pg_describe_object(d.classid, d.objid, 0)
  from pg_depend d
  join owner n on n.class = d.refclassid and n.oid = d.refobjid
  left join owner o on o.class = d.classid and o.oid = d.objid
 where d.deptype in ('n', 'a') and o.name is distinct from n.name
   and not (d.classid = 'pg_type'::regclass and o.name is null)
) found
"""
# The columns and tables that each object of the schema depends on.
_USES = f"""
select * from (
with owner as materialized ({_OWNERS})
select distinct o.name, quote_ident(c.relname) || coalesce('.' || quote_ident(a.attname), '')
  from owner o join pg_depend d on d.classid = o.class and d.objid = o.oid and d.refclassid = 'pg_class'::regclass
  join pg_class c on c.oid = d.refobjid and c.relkind in ('r', 'p', 'v') and c.relnamespace = {_SCHEMA}
  left join pg_attribute a on a.attrelid = c.oid and a.attnum = d.refobjsubid and d.refobjsubid > 0
) found
"""


@dataclass(frozen=True, slots=True)
class Changes:
    """The steps of an upgrade, in order: ``drop``, then the migrations of the tables, then ``make``."""

    drop: list[CodeObject]
    make: list[CodeObject]


def of_release(connection: Execute, schema: str, install: Callable[[str], None]) -> Catalogue:
    """The catalogue of a fresh installation, as if it were ``schema``."""
    return in_fresh(connection, install, lambda name: read(connection, name, schema))


def in_fresh(connection: Execute, install: Callable[[str], None], reader: Callable[[str], T]) -> T:
    """What ``reader`` finds in a fresh installation: ``install`` makes it in a schema of this name, and it is rolled
    back."""
    name = f"holdfast_next_{secrets.token_hex(8)}"
    connection.execute("savepoint fresh_installation")
    try:
        install(name)
        return reader(name)
    finally:
        connection.execute("rollback to savepoint fresh_installation; release savepoint fresh_installation")


def compare(connection: Execute, schema: str, target: Catalogue, recorded: Collection[str]) -> Changes:
    """What differs from ``target``. ``recorded`` are the identities that earlier releases installed."""
    live = read(connection, schema)
    wanted = target.objects
    partitions = partitions_on(connection)  # their triggers and policies stay as they are
    tables = target.columns.keys() | {name.rpartition(" on ")[2] for name in recorded if " on " in name}
    mine = {
        name
        for name, each in live.objects.items()
        if each.on not in partitions
        and (name in recorded or name in wanted or (each.kind == "default" and each.on in tables))
    }
    kept = {name: each for name, each in live.objects.items() if each.on in partitions and name not in wanted}
    changed = {
        name
        for name in (mine & wanted.keys()) - set(COMPILED)
        if live.objects[name].oid and live.objects[name].definition != wanted[name].definition
    }
    doomed = {name for name in mine - wanted.keys() if live.objects[name].kind in INSTALLED_KINDS}
    doomed |= {name for name in changed if not live.objects[name].replaceable_by(wanted[name])}
    # An object on a column that goes away or gets another type is in the way of the migration.
    moved = {name for name, type_ in live.columns.items() if target.columns.get(name) != type_}
    moved = {name for name in moved if name.partition(".")[0] not in partitions}
    doomed |= {name for name, column in connection.execute(_USES).fetchall() if column in moved and name in mine}
    needs = _needs(connection)
    doomed = _with_dependents(doomed, needs, mine | kept.keys())
    drop = [live.objects[name] for name in _dependents_first(doomed, needs)]
    make = [
        each for name, each in wanted.items() if each.oid and (name in changed | doomed or name not in live.objects)
    ]
    make.sort(key=lambda each: each.oid)
    return Changes(drop, make + [kept[name] for name in sorted(doomed & kept.keys())])


def partitions_on(connection: Execute) -> set[str]:
    return {row[0] for row in connection.execute(PARTITIONS).fetchall()}


def finishing(connection: Execute, schema: str, target: Catalogue) -> list[CodeObject]:
    """What differs once the objects were made: defaults, row-level security, grants and comments."""
    live = read(connection, schema).objects
    surplus = [
        each for name, each in live.items() if not each.oid and name not in target.objects and _is_of(each, target)
    ]
    differing = [
        each
        for name, each in target.objects.items()
        if not each.oid and (name not in live or live[name].definition != each.definition)
    ]
    surplus += [live[each.identity] for each in differing if each.kind == "grant" and each.identity in live]
    return [*(replace(each, create=each.drop) for each in surplus), *differing]


def _is_of(each: CodeObject, target: Catalogue) -> bool:
    """Whether a grant, comment, default or flag is on an object of the release."""
    if each.on:
        return each.on in target.columns
    what = each.name.rpartition(" to ")[0] if each.kind == "grant" else each.name
    return what in target.objects or what.partition(" ")[2] in target.columns


Needs = dict[str, set[tuple[str | None, str]]]
"""The dependents of each object: their identities (None for what is no code object of the schema), described."""


def _needs(connection: Execute) -> Needs:
    needs: Needs = {}
    for needed, dependent, described in connection.execute(_DEPENDENTS).fetchall():
        needs.setdefault(needed, set()).add((dependent, described.removeprefix("rule _RETURN on ")))
    return needs


def _with_dependents(doomed: Iterable[str], needs: Needs, mine: Collection[str]) -> set[str]:
    found: set[str] = set()
    foreign: set[str] = set()
    queue = list(doomed)
    while queue:
        name = queue.pop()
        if name in found:
            continue
        found.add(name)
        for dependent, described in needs.get(name, ()):
            if dependent is not None and dependent in mine:
                queue.append(dependent)
            else:
                foreign.add(f"{described} on {name}")
    if foreign:
        raise foreign_objects(foreign)
    return found


def _dependents_first(doomed: Collection[str], needs: Needs) -> list[str]:
    ordered: dict[str, None] = {}
    visiting: set[str] = set()

    def visit(name: str) -> None:
        if name in ordered or name in visiting:
            return
        visiting.add(name)
        for dependent in sorted({each for each, _ in needs.get(name, ()) if each is not None and each in doomed}):
            visit(dependent)
        ordered[name] = None

    for name in sorted(doomed):
        visit(name)
    return list(ordered)
