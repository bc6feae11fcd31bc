"""Apply a plan to a file: views and triggers are dropped before the tables change, and created again afterwards.

Only what Holdfast installed is dropped. The migration fails if it breaks a view or trigger of the user.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from importlib.resources import files

from holdfast.stores.migrations import Execute, Plan, Script, foreign_objects, statements_of_later
from holdfast.stores.sqlite.errors import translate
from holdfast.stores.sqlite.migrations import CODE_FILES

# In place of a record: the names of what 0.1.0 installed.
FIRST_INSTALLED = files(CODE_FILES.package).joinpath("sql", "installed_by_0_1_0.txt")
_CREATED = re.compile(r"^CREATE (TRIGGER|VIEW) (\w+)", re.MULTILINE)
# Holdfast's triggers are dropped when a table changes, and so are its changed views.
_OTHER = re.compile(r"error in ((?:view|trigger) .*)")
MARK = (
    "INSERT INTO holdfast_migration (name, digest) VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET digest ="
    " excluded.digest"
)

Objects = dict[str, tuple[str, str, str]]
"""Kind, table and text of each view and trigger."""


def identities(code: Script) -> list[str]:
    """What the code installs, as it is recorded."""
    return sorted({f"{kind.lower()} {name}" for kind, name in _CREATED.findall(code.sql)})


def apply(connection: Execute, plan: Plan, applied: dict[str, str], *, at_once: bool = False) -> None:
    """``at_once``: also what otherwise comes after the transaction."""
    plan.check_supported(applied)
    pending = plan.pending(applied)
    if not pending:
        return
    wanted = identities(plan.code)
    if not applied or at_once:
        pending += plan.pending_later(applied)
    if applied:
        mine = {name.partition(" ")[2] for name in {*recorded(connection), *wanted}}
        foreign = {name: each for name, each in objects(connection).items() if name not in mine}
        with _kept_working(connection, foreign, mine, plan.code):
            _run(connection, plan, pending)
    else:
        _run(connection, plan, pending)
    connection.execute("DELETE FROM holdfast_installed")
    for name in wanted:
        connection.execute("INSERT INTO holdfast_installed (name) VALUES (?)", (name,))


def take_later_steps(connection: sqlite3.Connection, plan: Plan, applied: dict[str, str]) -> None:
    """What a migration leaves for after its transaction: each statement, and each of its batches, holds the write lock
    for itself. It can be run again, so a process that is killed costs nothing."""
    for script in plan.pending_later(applied):
        for statement, repeated in statements_of_later(script, split(script.sql)):
            changed = 1
            while changed > 0:
                try:
                    done = connection.execute(statement)
                except sqlite3.Error as error:
                    raise script.failure(translate(error), str(error)) from error
                changed = done.rowcount if repeated else 0
        for mark in plan.marks(script).items():
            connection.execute(MARK, mark)


def recorded(connection: Execute) -> set[str]:
    exists = connection.execute("SELECT 1 FROM sqlite_schema WHERE name = 'holdfast_installed'").fetchall()
    if not exists:
        return set(FIRST_INSTALLED.read_text(encoding="utf-8").splitlines())
    return {row[0] for row in connection.execute("SELECT name FROM holdfast_installed").fetchall()}


def objects(connection: Execute) -> Objects:
    rows = connection.execute("SELECT name, type, tbl_name, sql FROM sqlite_schema WHERE type IN ('view', 'trigger')")
    return {name: (kind, table, sql) for name, kind, table, sql in rows.fetchall()}


def drop_code(connection: Execute, mine: Collection[str], code: Script | None = None) -> None:
    """Drop triggers, because the order of their creation is that in which they run, and views. Views that ``code`` has
    unchanged stay."""
    # Triggers first: those on a view end with it.
    for kind, name in sorted(_in_the_way(connection, mine, code)):
        connection.execute(f"DROP {kind} {name}")


def _in_the_way(connection: Execute, mine: Collection[str], code: Script | None) -> set[tuple[str, str]]:
    same = {statement.rstrip().rstrip(";") for statement in split(code.sql)} if code is not None else set()
    found = objects(connection).items()
    return {(kind, name) for name, (kind, _, sql) in found if name in mine and (kind == "trigger" or sql not in same)}


def _run(connection: Execute, plan: Plan, scripts: Sequence[Script]) -> None:
    for script in scripts:
        run_script(connection, script)
        for mark in plan.marks(script).items():
            connection.execute(MARK, mark)


def run_script(connection: Execute, script: Script) -> None:
    try:
        for statement in split(script.sql):
            connection.execute(statement)
    except sqlite3.Error as error:
        if found := _OTHER.match(str(error)):
            raise foreign_objects([found[1]]) from error
        raise script.failure(translate(error), str(error)) from error


@contextmanager
def _kept_working(connection: Execute, foreign: Objects, mine: Collection[str], code: Script) -> Iterator[None]:
    """Drop the code around the block. The user's views and triggers that name a dropped view make way too, because
    SQLite changes no table while one does not work. Raise if one worked before, and does not afterwards."""
    tables, worked = _tables(connection), bool(foreign) and not _broken(connection)
    dropped = {name for kind, name in _in_the_way(connection, mine, code) if kind == "view"}
    aside: Objects = {}
    while more := {name: each for name, each in foreign.items() if name not in aside and _names(each[2], dropped)}:
        aside |= more
        dropped = dropped | more.keys()
    for name, (kind, _, _) in sorted(aside.items(), key=lambda each: each[1]):
        connection.execute(f"DROP {kind} {_quoted(name)}")
    drop_code(connection, mine, code)
    yield
    gone = tables - _tables(connection)
    lost = [f"{kind} {name}" for name, (kind, table, _) in foreign.items() if table in gone]
    if not lost:
        for name, (kind, _, sql) in aside.items():
            try:
                connection.execute(sql)
            except sqlite3.Error as error:
                lost.append(f"{kind} {name} ({error})")
    if not lost and worked and (problem := _broken(connection)):
        lost.append(problem.removeprefix("error in "))
    if lost:
        raise foreign_objects(lost)


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _tables(connection: Execute) -> set[str]:
    return {row[0] for row in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'").fetchall()}


def _names(sql: str, gone: Iterable[str]) -> bool:
    return any(re.search(rf"\b{re.escape(name)}\b", sql) for name in gone)


def _broken(connection: Execute) -> str:
    """What is wrong with a view or trigger of the file: renaming a column checks all of them."""
    connection.execute("SAVEPOINT holdfast_check")
    try:
        connection.execute("CREATE TABLE holdfast_check (a)")
        connection.execute("ALTER TABLE holdfast_check RENAME COLUMN a TO b")
    except sqlite3.Error as error:
        return str(error)
    finally:
        connection.execute("ROLLBACK TO holdfast_check")
        connection.execute("RELEASE holdfast_check")
    return ""


def split(script: str) -> list[str]:
    """The statements of a script. SQLite recognises the semicolons inside triggers."""
    statements, current = [], ""
    for line in script.splitlines(keepends=True):
        current += line
        if sqlite3.complete_statement(current):
            statements.append(current.strip())
            current = ""
    return statements
