"""Records which SQL functions the tests call, for `make coverage`.

With HOLDFAST_TEST_SQL_COVERAGE=FOLDER the test servers count calls, and the names of called functions are added to a
file in FOLDER before a database is dropped or reused. PostgreSQL does not count a call that ends with an error; those
are read from the server's log, where each error names its functions.
`python -m tests.support.sql_coverage FOLDER` compares the names with the functions of the schema.

PostgreSQL does not count a function that it has inlined into the calling query. Those are checked by name: the body of
a called function, or a query in src/, has to mention them.
"""

from __future__ import annotations

import os
import re
import sys
from contextlib import closing
from pathlib import Path

import psycopg

FOLDER = os.environ.get("HOLDFAST_TEST_SQL_COVERAGE")
SETTINGS = {"track_functions": "all"} if FOLDER else {}

CALLED = "select distinct funcname from pg_stat_user_functions where schemaname = 'holdfast' and calls > 0"
ALL = """
    select proname, coalesce(pg_get_function_sqlbody(p.oid), prosrc), lanname <> 'plpgsql'
      from pg_proc p join pg_language l on l.oid = p.prolang
     where pronamespace = 'holdfast'::regnamespace
"""


def note_calls(dsn: str) -> None:
    """Add the functions called in this database. No other session may be open: a session reports its counts when it
    ends."""
    if not FOLDER:
        return
    try:
        with psycopg.connect(dsn) as connection:
            names = [str(name) for (name,) in connection.execute(CALLED)]
    except psycopg.Error:  # depends on what the test did to the database
        return
    with (Path(FOLDER) / f"{os.getpid()}.txt").open("a", encoding="utf-8") as file:
        file.writelines(f"{name}\n" for name in names)


def note_errors(log: str) -> None:
    """Add the functions in which errors were raised, from a server's log."""
    if FOLDER:
        names = set(re.findall(r"PL/pgSQL function (?:holdfast\.)?(\w+)\(", log))
        with (Path(FOLDER) / f"{os.getpid()}.txt").open("a", encoding="utf-8") as file:
            file.writelines(f"{name}\n" for name in sorted(names))


def main(folder: Path) -> int:
    from holdfast.features.assembly import open_store
    from tests.support.postgres_server import PostgresServer

    called = {name for path in folder.glob("*.txt") for name in path.read_text("utf-8").split()}
    server = PostgresServer(in_memory=True)
    server.start()
    try:
        dsn = server.create_database("all_functions")
        with closing(open_store(dsn)) as store:
            store.migrate()
        with psycopg.connect(dsn) as connection:
            rows = connection.execute(ALL).fetchall()
    finally:
        server.destroy()
    bodies = {name: body for name, body, _ in rows}
    plain = {name for name, _, is_plain in rows if is_plain}
    queries = "\n".join(path.read_text("utf-8") for path in Path("src").rglob("*.py"))
    while True:  # an inlined function calls others
        text = queries + "\n".join(bodies[name] for name in called & bodies.keys())
        more = {name for name in plain - called if re.search(rf"\b{name}\s*\(", text)}
        if not more:
            break
        called |= more
    missing = sorted(bodies.keys() - called)
    print(f"SQL functions called: {len(bodies) - len(missing)} of {len(bodies)}")
    for name in missing:
        print(f"  never called: {name}")
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
