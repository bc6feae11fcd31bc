"""What a migration would do, the way back to an earlier release, and the removal of all that Holdfast installed."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

from holdfast.stores.migrations import (
    CODE,
    RELEASE,
    SUPPORTS,
    Plan,
    check_nothing_lost,
    foreign_objects,
    unfinished_jobs,
    workers_running,
)
from holdfast.stores.requests import MigrationStep, Removal
from holdfast.stores.sqlite.migrations import CODE_FILES
from holdfast.stores.sqlite.upgrade import drop_code, objects, recorded, run_script, split

_WORKERS = (
    "SELECT count(*) FROM holdfast_lease WHERE ended_at IS NULL AND name <> 'reservation'"
    " AND until > (SELECT now FROM holdfast_present)"
)
_UNFINISHED = "SELECT count(*) FROM holdfast_job_state WHERE finished_at IS NULL"


def plan_on(plan: Plan, applied: dict[str, str]) -> list[MigrationStep]:
    """The statements that ``migrate`` would run. All of them hold the one write lock of the file."""
    plan.check_supported(applied)
    scripts = [*plan.pending(applied), *plan.pending_later(applied)]
    return [
        MigrationStep(script.name, statement, "write lock of the file" if applied else "", None)
        for script in scripts
        for statement in split(script.sql)
    ]


def down_on(connection: sqlite3.Connection, plan: Plan, applied: dict[str, str], release: str) -> list[str]:
    """Return the tables to an earlier release, without triggers and views: that release installs its own."""
    ways = plan.ways_down(release)
    plan.check_supported(applied)
    with _writing(connection):
        if connection.execute(_WORKERS).fetchone()[0]:
            raise workers_running()
        check_nothing_lost(
            what
            for way in ways
            for condition, what in way.losses
            if connection.execute(f"SELECT {condition}").fetchone()[0]
        )
        drop_code(connection, {name.partition(" ")[2] for name in recorded(connection)})
        for way in ways:
            run_script(connection, way)
            name = way.name.removesuffix(".down")
            connection.execute("DELETE FROM holdfast_migration WHERE name IN (?, ?)", (name, f"{name}.later"))
        connection.execute("DELETE FROM holdfast_migration WHERE name IN (?, ?, ?)", (CODE, RELEASE, SUPPORTS))
    return [way.name for way in ways]


def uninstall_on(connection: sqlite3.Connection, *, dry: bool, force: bool) -> Removal:
    """Drop everything that Holdfast installed in the file. Tables of others stay."""
    with _writing(connection, dry=dry):
        unfinished = connection.execute(_UNFINISHED).fetchone()[0]
        if unfinished and not (force or dry):
            raise unfinished_jobs(unfinished)
        code = recorded(connection)
        tables = [f"holdfast_{table.name}" for table in CODE_FILES.tables()]
        drop_code(connection, {name.partition(" ")[2] for name in code})
        if foreign := [f"{kind} {name}" for name, (kind, table, _) in objects(connection).items() if table in tables]:
            raise foreign_objects(foreign)
        connection.execute("PRAGMA defer_foreign_keys = ON")
        for table in tables:
            connection.execute(f"DROP TABLE {table}")
    return Removal(tuple(sorted([*code, *(f"table {table}" for table in tables)])), unfinished)


@contextmanager
def _writing(connection: sqlite3.Connection, *, dry: bool = False) -> Iterator[None]:
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("ROLLBACK" if dry else "COMMIT")
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
