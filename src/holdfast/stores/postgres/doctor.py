"""Checks of ``holdfast doctor`` and of health: problems of a PostgreSQL deployment before anything fails."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from holdfast.features.health.model import Concern, Thresholds, clock_skew, old_transaction, powerful_role, weak_setting
from holdfast.stores.flow import Statement, Steps, flow
from holdfast.stores.postgres.roles import check_logins, logins
from holdfast.stores.postgres.session import PINNED
from holdfast.stores.requests import Finding, SchemaStatus

if TYPE_CHECKING:
    from psycopg import Connection

    from holdfast.stores.postgres.connections import StoreConnection

ROLES = ("holdfast_viewer", "holdfast_producer", "holdfast_executor", "holdfast_approver", "holdfast_admin")


def diagnose(
    connection: StoreConnection, settings: dict[str, Any], schema: str, status: SchemaStatus, most: int
) -> list[Finding]:
    """Run all checks. ``settings`` are those of a second connection; ``most`` is how many one process may open."""

    def one(query: str, *params: Any) -> Any:
        row = connection.execute(query, params).fetchone()
        return row[0] if row else None

    version = int(one("select current_setting('server_version_num')")) // 10000
    findings = [
        Finding(
            "server",
            version >= 14,
            f"PostgreSQL {version}",
            None if version >= 14 else "Upgrade to 14 or newer.",
        ),
        status.finding,
    ]
    for name in ("fsync", "synchronous_commit", "full_page_writes"):
        value = one("select current_setting(%s)", name)
        findings.append(
            Finding(
                name,
                value != "off",
                f"{name} = {value}",
                None if value != "off" else "Jobs reported as accepted can be lost in a crash: set it to on.",
            )
        )
    findings.append(_standbys(*connection.execute(STANDBYS).fetchall()[0]))
    findings += _settings(connection)
    findings.append(_jit(*connection.execute(JIT, (schema,)).fetchone() or (False, "off", 0)))
    present = one("select count(*) from pg_roles where rolname = any(%s)", list(ROLES))
    findings.append(
        Finding(
            "roles",
            present == len(ROLES),
            f"{present} of {len(ROLES)} roles exist",
            None
            if present == len(ROLES)
            else f"As an administrator: {' '.join(f'create role {r};' for r in ROLES)}"
            " Then run holdfast migrate again.",
        )
    )
    login, granted = connection.execute(LOGIN, (list(ROLES),)).fetchall()[0]
    who = f"login {login}" + (f" ({', '.join(granted)})" if granted else "")
    findings.append(_tenancy(one(BYPASSES), one(OWNS, schema), who))
    findings += check_logins(logins(connection, schema))
    findings.append(_connections(connection, most))
    findings.append(_pooler(connection, settings))
    if status.current:
        findings.append(_locks(connection, schema))
        findings.append(_partitions(connection, schema))
        findings.append(_origin(one(f'select "{schema}".origin()')))
    age = float(one(OLDEST) or 0)
    findings.append(
        Finding(
            "old transactions",
            age < 300,
            f"the oldest open transaction is {age:.0f} s old",
            None if age < 300 else "It keeps dead rows from being cleaned up; find it in pg_stat_activity.",
        )
    )
    return findings


# Settings that slow workers down or make statements fail: the name, a test for harmless values, the effect of others.
HARMFUL: tuple[tuple[str, Callable[[str], bool], str], ...] = (
    ("autovacuum", "on".__eq__, "dead rows are not removed, and claims become slower and slower"),
    ("track_counts", "on".__eq__, "autovacuum does not run, and claims become slower and slower"),
    ("default_transaction_read_only", "off".__eq__, "no job can be enqueued or claimed"),
    (
        "default_transaction_isolation",
        lambda level: level.startswith("read "),
        "Holdfast's own connections use read committed. In your transactions, functions that count are refused"
        " (isolation_level)",
    ),
    ("session_replication_role", lambda role: role != "replica", "every operation is refused (replication_role)"),
    ("server_encoding", "UTF8".__eq__, "jobs with characters that it lacks are refused"),
    ("enable_indexscan", "on".__eq__, "every query reads whole tables"),
    ("enable_nestloop", "on".__eq__, "claims read whole tables"),
    ("statement_timeout", lambda ms: not 0 < int(ms) < 5_000, "long batches are cut off and repeated"),
    ("idle_session_timeout", lambda ms: not 0 < int(ms) < 60_000, "idle connections are closed again and again"),
)
# The value that the session began with, not the one that Holdfast has set.
SETTINGS = """
    select lower(name), reset_val, case when setting = reset_val then current_setting(name) else reset_val end
      from pg_settings where lower(name) = any (%s)
"""


def _settings(connection: Connection[Any]) -> list[Finding]:
    """One finding per harmful setting, or a single positive one; and the settings that have no effect on us."""
    rows = connection.execute(SETTINGS, ([name for name, _, _ in HARMFUL] + [*PINNED],)).fetchall()
    values = {name: (setting, shown) for name, setting, shown in rows}
    fix = "Change it for the server, or for this database: alter database … set …"
    findings = [
        Finding(name, False, f"{name} = {values[name][1]}: {effect}", fix)
        for name, harmless, effect in HARMFUL
        if name in values and not harmless(values[name][0])
    ]
    if not findings:
        findings = [Finding("settings", True, "none of them slows workers down")]
    checked = {name for name, _, _ in HARMFUL}
    ours = [
        f"{name} = {values[name][1]}"
        for name, value in PINNED.items()
        if name in values and name not in checked and values[name][0].partition(",")[0] != value
    ]
    if ours:
        says = f"{', '.join(ours)}: Holdfast uses its own values on its connections"
        findings.append(Finding("session settings", True, says))
    return findings


# The state of a standby is visible to superusers and members of pg_read_all_stats only.
STANDBYS = """
    select count(*), count(*) filter (where sync_state in ('sync', 'quorum')), count(*) = count(sync_state),
           current_setting('synchronous_standby_names') <> '' and current_setting('synchronous_commit') <> 'local'
      from pg_stat_replication
"""


def _standbys(connected: int, synchronous: int, visible: bool, waits: bool) -> Finding:
    """Whether jobs survive the loss of this server."""
    fix = None
    if waits and visible and not synchronous:
        says = f"{connected} connected, none of them synchronous: every commit waits for one"
        fix = "Start the standby that synchronous_standby_names requires, or reset that setting."
    elif waits:
        says = f"{connected} connected, synchronous: a failover loses no accepted job"
    elif connected:
        says = f"{connected} connected, asynchronous: a failover loses the jobs of the last moments"
    else:
        says = "none is connected: of a lost server only backups are left"
    return Finding("standbys", fix is None, says, fix)


# Planner settings of a function (enable_seqscan = off) add a penalty to the cost of a plan that exceeds jit_above_cost.
# JIT would compile such a plan at every call, for tens of milliseconds. So each of these functions turns JIT off.
JIT = """
    select pg_jit_available(), current_setting('jit'), count(*) from pg_proc p
     where p.pronamespace = to_regnamespace(%s) and p.proconfig::text like '%%enable_%%'
       and not 'jit=off' = any (p.proconfig)
"""


def _jit(available: bool, setting: str, unguarded: int) -> Finding:
    if not available:
        return Finding("jit", True, f"jit = {setting}, and this server cannot compile queries")
    if setting == "off" or not unguarded:
        return Finding("jit", True, f"jit = {setting}; Holdfast turns it off for its own statements")
    return Finding(
        "jit",
        False,
        f"jit = on, and {unguarded} functions of the schema do not turn it off: every call is compiled, which makes"
        " workers many times slower",
        "Run holdfast migrate with this release. Until then: alter database … set jit = off",
    )


# The connection limits of the server, the database and this role, each with the number in use. The smallest rest
# counts.
CONNECTIONS = """
    select current_setting('max_connections')::integer - current_setting('superuser_reserved_connections')::integer
               - coalesce(current_setting('reserved_connections', true), '0')::integer,
           (select count(*) from pg_stat_activity where backend_type = 'client backend'),
           d.datconnlimit, (select count(*) from pg_stat_activity where datname = d.datname),
           r.rolconnlimit, (select count(*) from pg_stat_activity where usename = r.rolname)
      from pg_database d, pg_roles r where d.datname = current_database() and r.rolname = current_user
"""


def _connections(connection: Connection[Any], most: int) -> Finding:
    row = connection.execute(CONNECTIONS).fetchone()
    assert row is not None
    limits = zip(("server", "database", "role"), row[::2], row[1::2], strict=True)
    free, scope, limit = min((limit - used, scope, limit) for scope, limit, used in limits if limit >= 0)
    enough = free + 1 >= most  # this connection is closed after the check
    return Finding(
        "connections",
        enough,
        f"{free} of {limit} are free ({scope}); a worker process opens {most} at most",
        None
        if enough
        else "Raise max_connections (or the limit of the database or role), run fewer processes, or use a pooler.",
    )


def _pooler(connection: StoreConnection, settings: dict[str, Any]) -> Finding:
    from holdfast.stores.postgres.pipeline import receives_notifications

    if connection.direct:
        return Finding("pooler", True, "none: the connection is direct")
    if receives_notifications(connection, settings):
        return Finding("pooler", True, "a pooler with one server connection per client (session mode)")
    return Finding(
        "pooler",
        False,
        "a pooler in transaction mode: workers receive no notifications of new jobs, and poll",
        "Start workers with --no-notify, or give them a direct connection; see the guide on poolers.",
    )


HELD_FOR = 1.0
BLOCKERS = 'select locked, seconds, holder, role, application from "{schema}".lock_waits()'
HOLDERS = 'select locked, transaction, pid, role, application from "{schema}".lock_holders()'


def _locks(connection: Connection[Any], schema: str) -> Finding:
    """Locks that other transactions wait for, and locks that one transaction holds for a second."""
    waits = connection.execute(BLOCKERS.format(schema=schema)).fetchall()
    says = [_waited(*row) for row in waits]
    if held := connection.execute(HOLDERS.format(schema=schema)).fetchall():
        time.sleep(HELD_FOR)
        still = set(connection.execute(HOLDERS.format(schema=schema)).fetchall())
        says += [f"{holder(*row[2:])} holds a lock on {row[0]}" for row in held if row in still]
    return Finding(
        "locks",
        not says,
        "; ".join(dict.fromkeys(says)) or "nothing waits for a lock",
        None if not says else "End that transaction, or its connection: select pg_terminate_backend(<process>)",
    )


PARTITIONS = """
    select count(*), (select p.high from "{schema}".event_partition p order by p.high desc limit 1),
           extract(epoch from "{schema}".clock_now()) * 1000 from "{schema}".event_partition
"""


def _partitions(connection: Connection[Any], schema: str) -> Finding:
    """The partitions of the ledger. Without one for new jobs nothing fails, but their events are purged row by row."""
    row = connection.execute(PARTITIONS.format(schema=schema).encode()).fetchone()
    count, high, now = row or (0, None, 0)
    ready = high is not None and int(str(high).replace("-", "")[:12], 16) > now
    return Finding(
        "partitions",
        ready,
        f"{count} of the ledger" + ("" if ready else "; none is for new jobs, whose events are purged row by row"),
        None if ready else "Start a worker for every tenant, or run: holdfast retention sweep --all-tenants",
    )


_ORIGINS = {
    "here": "the database continues where it was",
    "standby": "a standby, which follows another server",
    "copied": "a copy, restored from a dump or replicated: it refuses work until it is adopted",
    "recovered": "recovered from the files of a server, or failed over: cursors kept elsewhere may be ahead of it",
}


def _origin(origin: str) -> Finding:
    ok = origin in ("here", "standby")
    fix = None if ok else "See what is different, then adopt it: holdfast restore-check --adopt"
    return Finding(origin if not ok else "origin", ok, _ORIGINS[origin], fix)


def holder(pid: int | None, role: str | None, application: str | None) -> str:
    named = f", application {application}" if application else ""
    return f"process {pid or 'unknown'} (role {role or 'unknown'}{named})"


def _waited(locked: str, seconds: float, *who: Any) -> str:
    return f"transactions have waited {seconds:.0f} s for a lock on {locked}; {holder(*who)} holds it"


def blockers(connection: Connection[Any], schema: str) -> list[str]:
    """Descriptions of the locks that are waited for, with their holders."""
    rows = connection.execute(BLOCKERS.format(schema=schema)).fetchall()
    return list(dict.fromkeys(_waited(*row) for row in rows))


OLDEST = (
    "select max(extract(epoch from clock_timestamp() - xact_start)) from pg_stat_activity"
    " where state <> 'idle' and pid <> pg_backend_pid() and backend_xmin is not null"
)


LOGIN = (
    "select current_user, array(select rolname::text from pg_roles where rolname = any(%s)"
    " and pg_has_role(current_user, oid, 'member') order by 1)"
)
BYPASSES = "select rolsuper or rolbypassrls from pg_roles where rolname = current_user"
OWNS = (
    "select exists (select from pg_class where relnamespace = to_regnamespace(%s) and relowner = current_user::regrole)"
)
WATCHED = ("fsync", "full_page_writes", "synchronous_commit")
# Individually: the view pg_settings builds a row for each of four hundred settings.
_VALUES = ", ".join(f"current_setting('{name}')" for name in WATCHED)
CONDITIONS = f"select array[{_VALUES}], extract(epoch from clock_timestamp()), ({OLDEST}), ({BYPASSES}), ({OWNS})"


@flow(writes=False, single=True)
def conditions(schema: str, when: Thresholds) -> Steps[list[Concern]]:
    """The cheap checks, which health runs every few seconds."""
    before = time.time()
    rows = yield Statement(CONDITIONS, (schema,))
    after = time.time()
    settings, clock, oldest, bypasses, owns = rows[0]
    server, role = float(clock), _tenancy(bypasses, owns)
    weak = [name for name, value in zip(WATCHED, settings, strict=True) if value == "off"]
    concerns: list[Concern | None] = [
        weak_setting(f"{name} = off", corrupts=name != "synchronous_commit") for name in weak
    ]
    concerns += [
        old_transaction(float(oldest or 0), when),
        clock_skew(min(server - before, server - after, key=abs) if not before <= server <= after else 0.0, when),
        None if role.ok else powerful_role(role.says),
    ]
    return [concern for concern in concerns if concern is not None]


def _tenancy(bypasses: Any, owns: Any, who: str = "this role") -> Finding:
    if bypasses:
        says = f"{who} bypasses row-level security: tenants are kept apart by Holdfast's own conditions only"
    elif owns:
        says = f"{who} owns the tables and could disable row-level security"
    else:
        says = f"{who} owns nothing and bypasses nothing"
    return Finding(
        "role",
        not bypasses and not owns,
        says,
        None
        if not (bypasses or owns)
        else "For several tenants run with a role that was only granted holdfast_executor or holdfast_producer.",
    )
