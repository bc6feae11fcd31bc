"""The code objects of a schema as its server describes them: what each is, and the statements that make and drop it.

Two schemas of one server with the same code objects have equal catalogues. ``changes.py`` compares a fresh installation
with a database and applies the difference.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from holdfast.stores.migrations import Execute
from holdfast.stores.postgres.doctor import ROLES

INSTALLED_KINDS = ("function", "view", "trigger", "policy")
"""The kinds that a release may leave behind; grants, comments and defaults end with the object they belong to."""


@dataclass(frozen=True, slots=True)
class CodeObject:
    kind: str
    name: str
    oid: int
    """Ascending in the order of creation, over all kinds; 0 for grants, comments and defaults."""
    definition: str
    """Equal for equal objects of two schemas."""
    shape: tuple[str, ...]
    """What `create or replace` cannot change: arguments and result of a function, the columns of a view."""
    create: str
    drop: str
    on: str = ""
    """The table whose lock a change needs."""

    @property
    def identity(self) -> str:
        return f"{self.kind} {self.name}"

    def replaceable_by(self, new: CodeObject) -> bool:
        if self.kind == "view":
            return new.shape[: len(self.shape)] == self.shape
        if self.kind == "trigger":
            return "CONSTRAINT TRIGGER" not in new.create + self.create
        return self.kind == "function" and new.shape == self.shape


@dataclass(frozen=True, slots=True)
class Catalogue:
    objects: Mapping[str, CodeObject]
    columns: Mapping[str, str]
    """The type of each column by ``table.column``, and the names of tables, views and sequences."""


_FUNCTIONS = """
select 'function', format('%I(%s)', p.proname, oidvectortypes(p.proargtypes)), p.oid::bigint, pg_get_functiondef(p.oid),
       array[p.prokind::text, pg_get_function_arguments(p.oid), pg_get_function_result(p.oid)],
       pg_get_functiondef(p.oid), format('drop routine %I(%s)', p.proname, oidvectortypes(p.proargtypes)), ''
  from pg_proc p where p.pronamespace = current_schema()::regnamespace and p.prokind in ('f', 'p')
"""
_VIEWS = """
select 'view', format('%I', c.relname), c.oid::bigint, format('%s %s', c.reloptions, pg_get_viewdef(c.oid)),
       array(select format('%I %s', a.attname, format_type(a.atttypid, a.atttypmod)) from pg_attribute a
              where a.attrelid = c.oid and a.attnum > 0 order by a.attnum),
       format('create or replace view %I %sas %s', c.relname, 'with (' || array_to_string(c.reloptions, ', ') || ') ',
              pg_get_viewdef(c.oid)),
       format('drop view %I', c.relname), ''
  from pg_class c where c.relnamespace = current_schema()::regnamespace and c.relkind = 'v'
"""
_TRIGGERS = """
select 'trigger', format('%I on %I', t.tgname, c.relname), t.oid::bigint,
       format('%s %s', t.tgenabled, pg_get_triggerdef(t.oid)),
       array[]::text[],
       regexp_replace(pg_get_triggerdef(t.oid), '^CREATE TRIGGER', 'CREATE OR REPLACE TRIGGER') || format(
           '; alter table %I %s trigger %I', c.relname,
           case t.tgenabled when 'O' then 'enable' when 'A' then 'enable always' when 'R' then 'enable replica'
                            else 'disable' end,
           t.tgname),
       format('drop trigger %I on %I', t.tgname, c.relname), c.relname::text
  from pg_trigger t join pg_class c on c.oid = t.tgrelid
 where c.relnamespace = current_schema()::regnamespace and not t.tgisinternal and t.tgparentid = 0
"""
_POLICIES = """
select 'policy', format('%I on %I', p.polname, c.relname), p.oid::bigint, d.text, array[]::text[], d.text,
       format('drop policy %I on %I', p.polname, c.relname), c.relname::text
  from pg_policy p join pg_class c on c.oid = p.polrelid
  cross join lateral (select format('create policy %I on %I as %s for %s to %s%s%s', p.polname, c.relname,
       case when p.polpermissive then 'permissive' else 'restrictive' end,
       case p.polcmd when 'r' then 'select' when 'a' then 'insert' when 'w' then 'update' when 'd' then 'delete'
                     else 'all' end,
       (select string_agg(case r when 0 then 'public' else quote_ident(pg_get_userbyid(r)) end, ', ')
          from unnest(p.polroles) r),
       ' using (' || pg_get_expr(p.polqual, p.polrelid) || ')',
       ' with check (' || pg_get_expr(p.polwithcheck, p.polrelid) || ')') as text) d
 where c.relnamespace = current_schema()::regnamespace
"""
_SECURITY = """
select 'security', format('%I', c.relname), 0::bigint, d.text, array[]::text[], d.text,
       format('alter table %1$I no force row level security, disable row level security', c.relname), c.relname::text
  from pg_class c
  cross join lateral (select format('alter table %I %s row level security, %s row level security', c.relname,
       case when c.relrowsecurity then 'enable' else 'disable' end,
       case when c.relforcerowsecurity then 'force' else 'no force' end) as text) d
 where c.relnamespace = current_schema()::regnamespace and c.relkind in ('r', 'p')
   and (c.relrowsecurity or c.relforcerowsecurity)
"""
_DEFAULTS = """
select 'default', format('%I.%I', c.relname, a.attname), 0::bigint, pg_get_expr(d.adbin, d.adrelid), array[]::text[],
       format('alter table %I alter column %I set default %s', c.relname, a.attname, pg_get_expr(d.adbin, d.adrelid)),
       format('alter table %I alter column %I drop default', c.relname, a.attname), c.relname::text
  from pg_class c
  join pg_attribute a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped and a.attgenerated = ''
  join pg_attrdef d on d.adrelid = c.oid and d.adnum = a.attnum
 where c.relnamespace = current_schema()::regnamespace and c.relkind in ('r', 'p')
"""
_GRANTS = """
select 'grant', format('%s to %s', g.what, r.name), 0::bigint, g.allowed, array[]::text[],
       format('grant %s on %s to %s', g.allowed, g.what, r.name),
       format('revoke %s on %s from %s', g.allowed, g.what, r.name), ''
  from (
    select o.what, o.grantee, string_agg(o.privilege, ', ' order by o.privilege) as allowed from (
        select format('schema %I', n.nspname) as what, x.grantee, x.privilege_type as privilege
          from pg_namespace n cross join lateral aclexplode(n.nspacl) x
         where n.nspname = current_schema() and x.grantee <> n.nspowner
        union all
        select format('function %I(%s)', p.proname, oidvectortypes(p.proargtypes)), x.grantee, x.privilege_type
          from pg_proc p cross join lateral aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) x
         where p.pronamespace = current_schema()::regnamespace and x.grantee <> p.proowner
        union all
        select format('%s %I', case c.relkind when 'S' then 'sequence' else 'table' end, c.relname), x.grantee,
               x.privilege_type
          from pg_class c cross join lateral aclexplode(c.relacl) x
         where c.relnamespace = current_schema()::regnamespace and x.grantee <> c.relowner
        union all
        select format('table %I', c.relname), x.grantee,
               format('%s (%s)', x.privilege_type, string_agg(quote_ident(a.attname), ', ' order by a.attname))
          from pg_class c join pg_attribute a on a.attrelid = c.oid cross join lateral aclexplode(a.attacl) x
         where c.relnamespace = current_schema()::regnamespace and x.grantee <> c.relowner
         group by c.relname, x.grantee, x.privilege_type
    ) o group by o.what, o.grantee
  ) g
  cross join lateral (
       select case g.grantee when 0 then 'public' else quote_ident(pg_get_userbyid(g.grantee)) end as name) r
 where r.name in ('public', {roles})
""".replace("{roles}", ", ".join(f"'{role}'" for role in ROLES))
_COMMENTS = """
select 'comment', d.what, 0::bigint, d.says, array[]::text[], format('comment on %s is %L', d.what, d.says),
       format('comment on %s is null', d.what), ''
  from (
    select format('function %I(%s)', p.proname, oidvectortypes(p.proargtypes)) as what,
           obj_description(p.oid, 'pg_proc') as says
      from pg_proc p where p.pronamespace = current_schema()::regnamespace and p.prokind in ('f', 'p')
    union all
    select format('%s %I', case c.relkind when 'v' then 'view' else 'table' end, c.relname),
           obj_description(c.oid, 'pg_class')
      from pg_class c where c.relnamespace = current_schema()::regnamespace and c.relkind in ('r', 'p', 'v')
    union all
    select format('column %I.%I', c.relname, a.attname), col_description(c.oid, a.attnum)
      from pg_class c join pg_attribute a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
     where c.relnamespace = current_schema()::regnamespace and c.relkind in ('r', 'p')
  ) d where d.says is not null
"""
_COLUMNS = """
select format('%I.%I', c.relname, a.attname), format_type(a.atttypid, a.atttypmod)
  from pg_class c join pg_attribute a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
 where c.relnamespace = current_schema()::regnamespace and c.relkind in ('r', 'p', 'v')
union all
select format('%I', c.relname), '' from pg_class c
 where c.relnamespace = current_schema()::regnamespace and c.relkind in ('r', 'p', 'v', 'S')
"""
_ALL = (_FUNCTIONS, _VIEWS, _TRIGGERS, _POLICIES, _SECURITY, _DEFAULTS, _GRANTS, _COMMENTS)

# Partitions that Holdfast makes while it runs. Their names are times, so those of two installations differ.
PARTITIONS = """
select quote_ident(c.relname) from pg_class c
 where c.relnamespace = current_schema()::regnamespace and c.relispartition and c.relkind = 'r'
   and pg_get_expr(c.relpartbound, c.oid) <> 'DEFAULT'
"""

# The identities of INSTALLED_KINDS, as one query.
IDENTITIES = f"""
select k || ' ' || n from ({" union all ".join(_ALL[:4])}) o(k, n, oid, d, s, c, dr, t)
 where t not in ({PARTITIONS})
"""


def read(connection: Execute, schema: str, called: str | None = None) -> Catalogue:
    """The catalogue of ``schema``, with texts as if its name were ``called``: then ``schema`` must be a name that
    occurs in no other meaning, and partitions made at its time are left out. Leaves the search path set to the schema,
    so that most texts do not name it."""
    connection.execute(f'set local search_path = "{schema}", pg_catalog, pg_temp')

    def text(found: str) -> str:
        return found if called is None else found.replace(f"'{schema}'", f"'{called}'").replace(schema, quoted)

    quoted = "" if called is None else connection.execute("select quote_ident(%s)", (called,)).fetchall()[0][0]
    objects = {}
    for query in _ALL:
        for kind, name, oid, definition, shape, create, drop, on in connection.execute(query).fetchall():
            found = CodeObject(
                kind, text(name), oid, text(definition), tuple(map(text, shape)), text(create), text(drop), on
            )
            objects[found.identity] = found
    columns = {text(name): text(kind) for name, kind in connection.execute(_COLUMNS).fetchall()}
    if called is not None:
        made = {row[0] for row in connection.execute(PARTITIONS).fetchall()}
        objects = {name: each for name, each in objects.items() if each.on not in made}
        columns = {name: kind for name, kind in columns.items() if name.partition(".")[0] not in made}
    return Catalogue(objects, columns)
