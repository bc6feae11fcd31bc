"""What can be wrong with a PostgreSQL deployment without anything failing yet."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from holdfast.domain.health import Concern, Thresholds, clock_skew, old_transaction, powerful_role, weak_setting
from holdfast.stores.base import Finding, SchemaStatus

if TYPE_CHECKING:
    from psycopg import Connection

ROLES = ("holdfast_viewer", "holdfast_producer", "holdfast_executor", "holdfast_approver", "holdfast_admin")


def diagnose(connection: Connection[Any], schema: str, status: SchemaStatus) -> list[Finding]:
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
        Finding(
            "schema",
            status.current,
            "up to date"
            if status.current
            else f"pending: {', '.join(status.pending) or 'none'}; "
            f"from a newer release: {', '.join(status.unknown) or 'none'}",
            None if status.current else "Run: holdfast migrate",
        ),
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
    findings.append(_tenancy(one, schema))
    age = float(one(OLDEST) or 0)
    findings.append(
        Finding(
            "old transactions",
            age < 300,
            f"the oldest open transaction is {age:.0f} s old",
            None if age < 300 else "It keeps dead rows from being cleaned up; look for it in pg_stat_activity.",
        )
    )
    return findings


OLDEST = (
    "select max(extract(epoch from clock_timestamp() - xact_start)) from pg_stat_activity"
    " where state <> 'idle' and pid <> pg_backend_pid() and backend_xmin is not null"
)


def conditions(connection: Connection[Any], schema: str, when: Thresholds) -> list[Concern]:
    """The part of it that can be asked for every few seconds."""

    def one(query: str, *params: Any) -> Any:
        row = connection.execute(query, params).fetchone()
        return row[0] if row else None

    weak = connection.execute(
        "select name from pg_settings where name in ('fsync', 'synchronous_commit', 'full_page_writes')"
        " and setting = 'off' order by name"
    ).fetchall()
    found: list[Concern | None] = [
        weak_setting(f"{name} = off", corrupts=name != "synchronous_commit") for (name,) in weak
    ]
    before = time.time()
    server = float(one("select extract(epoch from clock_timestamp())"))
    after = time.time()
    role = _tenancy(one, schema)
    found += [
        old_transaction(float(one(OLDEST) or 0), when),
        clock_skew(min(server - before, server - after, key=abs) if not before <= server <= after else 0.0, when),
        None if role.ok else powerful_role(role.says),
    ]
    return [concern for concern in found if concern is not None]


def _tenancy(one: Any, schema: str) -> Finding:
    bypasses = one("select rolsuper or rolbypassrls from pg_roles where rolname = current_user")
    owns = one(
        "select exists (select from pg_class where relnamespace = to_regnamespace(%s)"
        " and relowner = current_user::regrole)",
        schema,
    )
    if bypasses:
        says = "this role bypasses row-level security: tenants are kept apart by Holdfast's own conditions only"
    elif owns:
        says = "this role owns the tables and could switch row-level security off"
    else:
        says = "this role owns nothing and bypasses nothing"
    return Finding(
        "role",
        not bypasses and not owns,
        says,
        None
        if not (bypasses or owns)
        else "For several tenants run with a role that was only granted holdfast_executor or holdfast_producer.",
    )
