"""The roles of a PostgreSQL deployment: their rights, and the logins that have them.

The functions that a role may call are parsed from ``sql/grants.sql``, so that there is no second list.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from holdfast.stores.requests import Finding, Login

if TYPE_CHECKING:
    from psycopg import Connection

MAY: Final = {
    "holdfast_viewer": "read jobs, events, health and settings of its tenant",
    "holdfast_producer": "read; enqueue and cancel jobs, send events, start workflows",
    "holdfast_executor": "read; enqueue; run jobs, maintenance and schedules, of every tenant",
    "holdfast_approver": "read; decide approvals",
    "holdfast_admin": "everything: also redrive, discard, limits, pauses, tokens, tenants and retention",
}
_LISTS: Final = {
    "holdfast_producer": ("v_produce",),
    "holdfast_executor": ("v_execute",),
    "holdfast_approver": ("v_approve",),
    "holdfast_admin": ("v_produce", "v_execute", "v_approve", "v_admin"),
}
_LOGINS: Final = """
    select r.rolname, array_agg(h.rolname order by h.rolname), r.rolsuper or r.rolbypassrls,
           exists (select from pg_class c join pg_namespace n on n.oid = c.relnamespace
                    where n.nspname = %s and c.relname = 'job_state' and c.relowner = r.oid)
      from pg_roles r join pg_roles h on h.rolname = any (%s) and pg_has_role(r.oid, h.oid, 'member')
     where r.rolcanlogin and not (r.rolsuper and r.rolname <> current_user)
     group by r.oid, r.rolname, r.rolsuper, r.rolbypassrls order by r.rolname"""


@cache
def functions() -> dict[str, frozenset[str]]:
    """The functions that each role may call."""
    text = (Path(__file__).parent / "sql" / "grants.sql").read_text(encoding="utf-8")
    lists = {
        name: frozenset(re.findall(r"'(\w+)'", body))
        for name, body in re.findall(r"(v_\w+)\s+text\[\] := array\[(.*?)\];", text, re.DOTALL)
    }
    return {role: lists["v_reads"].union(*(lists[each] for each in _LISTS.get(role, ()))) for role in MAY}


def missing_role(message: str) -> str:
    """The advice after "permission denied": grant the smallest role that has the right."""
    match = re.search(r"permission denied for function (\w+)", message)
    roles = [role for role, names in functions().items() if match is not None and match[1] in names]
    if roles:
        others = f" ({', '.join(roles[1:])} may as well.)" if roles[1:] else ""
        return f"Grant the login the role {roles[0]}: grant {roles[0]} to LOGIN.{others} See: holdfast roles"
    return "Grant the login one of holdfast_viewer, _producer, _executor, _approver, _admin. See: holdfast roles"


def logins(connection: Connection[Any], schema: str) -> list[Login]:
    pins = _pins(connection, schema)
    rows = connection.execute(_LOGINS, (schema, list(MAY))).fetchall()
    return [Login(name, tuple(roles), bypasses, owns, pins.get(name)) for name, roles, bypasses, owns in rows]


def _pins(connection: Connection[Any], schema: str) -> dict[str, str]:
    """The tenant that each login is pinned to; empty for a login without the right to read pins."""
    table = f'"{schema}".login_pin'
    readable = "select coalesce(has_table_privilege(to_regclass(%s), 'select'), false)"
    if not connection.execute(readable, (table,)).fetchall()[0][0]:
        return {}
    with connection.transaction():
        connection.execute("select set_config('holdfast.tenant', '*', true)")
        return dict(connection.execute(f"select login, tenant from {table}").fetchall())


def check_logins(logins: list[Login]) -> list[Finding]:
    """One finding per login. Excessive rights are only advice: with a single tenant they are acceptable."""
    findings = []
    for login in logins:
        says = f"login {login.name} has {', '.join(login.roles)}"
        if login.tenant is not None:
            says += f" and is pinned to tenant {login.tenant}"
        fix = None
        if login.bypasses or login.owns:
            says += " and bypasses row-level security" if login.bypasses else " and owns the tables"
            fix = f"Use a login that was only granted what it needs: holdfast roles. {login.name} is for migrations."
        findings.append(Finding("login", fix is None, says, fix))
    return findings
