"""SQLite as one of the two databases of a move.

A target is a new file. Programs refuse it because of a mark among its migrations, and it has no triggers until it is
opened.
"""

from __future__ import annotations

import json
import os
import sqlite3
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

from holdfast.engine.redaction import shown_url
from holdfast.errors import InvalidSetting, NotFound, StoreUnavailable
from holdfast.features.moves.model import Kind, Mark, Shape, Table, expression, not_empty, taken_over
from holdfast.features.moves.store import MARK_COLUMNS, NOTES, Change, Keys, Rows, Side
from holdfast.stores.migrations import MOVED, MOVING
from holdfast.stores.sqlite.connections import Connections, StoreConnection
from holdfast.stores.sqlite.errors import translate
from holdfast.stores.sqlite.fair_shares import FAIR_INDEX
from holdfast.stores.sqlite.store import SqliteDatabase
from holdfast.stores.sqlite.upgrade import MARK, apply, drop_code, recorded, run_script

_PREFIX = "holdfast_"
_PAIR = "'{column}', {row}.{column}"
_CHANGED = {"INSERT": ("NEW",), "UPDATE": ("OLD", "NEW"), "DELETE": ("OLD",)}
_NOTE = "INSERT INTO holdfast_move_note (what, key) VALUES ('{table}', {key});"
_TABLES = """
    CREATE TABLE IF NOT EXISTS holdfast_move_mark (id TEXT, other TEXT, owner TEXT, phase TEXT, progress TEXT);
    CREATE TABLE IF NOT EXISTS holdfast_move_note (n INTEGER PRIMARY KEY AUTOINCREMENT, what TEXT, key TEXT)
"""


class SqliteSide(Side):
    kind: Kind = "sqlite"

    def __init__(self, store: SqliteDatabase, stack: ExitStack) -> None:
        super().__init__(store)  # type: ignore[arg-type]
        self.connections: Connections = store._connections
        self.path = self.connections.path
        self._plan = store._plan
        self._stack = stack
        self._opened: StoreConnection | None = None

    @property
    def exists(self) -> bool:
        return os.path.exists(self.path)

    @property
    def _connection(self) -> StoreConnection:
        if self._opened is None:
            with translated():
                self._opened = self._stack.enter_context(self.connections.separate())
                self._opened.execute("PRAGMA foreign_keys = OFF")  # a parent may be stored after its child
        return self._opened

    @contextmanager
    def _writing(self) -> Iterator[StoreConnection]:
        connection = self._connection
        with translated():
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise
            self.connections.after_write(connection)

    def _query(self, text: str, params: Sequence[Any] | Mapping[str, Any] = ()) -> list[Any]:
        with translated():
            return self._connection.execute(text, params).fetchall()

    def _has(self, table: str) -> bool:
        found = "SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = ?"
        return self.exists and bool(self._query(found, (_PREFIX + table,)))

    @property
    def announced(self) -> str:
        return f"sqlite:///{os.path.abspath(self.path)}"

    def identity(self) -> str:
        return os.path.realpath(self.path)

    def check(self) -> None:
        if self.connections.in_memory:
            raise InvalidSetting(
                "a database in memory cannot be moved", code="move_in_memory", fix="Name a file: sqlite:///jobs.db."
            )
        if not self.exists:
            folder = Path(self.path).absolute().parent
            if not os.access(folder, os.W_OK):
                raise StoreUnavailable(
                    f"{folder} cannot be written", code="store_read_only", fix="Choose another folder."
                )
            return
        if not os.access(self.path, os.W_OK):
            raise StoreUnavailable(f"{self.path} cannot be written", code="store_read_only", fix="Change its mode.")
        encoding = self._query("PRAGMA encoding")[0][0]
        if encoding != "UTF-8":
            raise InvalidSetting(
                f"{self.path} has the encoding {encoding}",
                code="move_encoding",
                fix="Move its contents into a new file.",
            )

    def shapes(self) -> dict[str, Shape]:
        if self.exists:
            return self._shapes(self._connection)
        with translated(), closing(sqlite3.connect(":memory:", isolation_level=None)) as blank:
            apply(blank, self._plan, {}, at_once=True)
            return self._shapes(blank)

    @staticmethod
    def _shapes(connection: sqlite3.Connection) -> dict[str, Shape]:
        names = connection.execute(
            "SELECT name FROM sqlite_schema WHERE type = 'table' AND name LIKE 'holdfast\\_%' ESCAPE '\\'"
            " AND name NOT LIKE 'holdfast\\_move\\_%' ESCAPE '\\'"
        ).fetchall()
        found = {}
        for (name,) in names:
            columns = connection.execute(
                f"SELECT name, type, pk FROM pragma_table_info('{name}') ORDER BY cid"
            ).fetchall()
            key = tuple(column for column, _, n in sorted(columns, key=lambda row: row[2]) if n)
            # Jobs have numbers of their own here; their ids are unique too.
            found[name.removeprefix(_PREFIX)] = Shape(
                {column: kind for column, kind, _ in columns}, ("id",) if key == ("n",) else key
            )
        return found

    def mark(self) -> Mark | None:
        rows = self._query(f"SELECT {MARK_COLUMNS} FROM holdfast_move_mark") if self._has("move_mark") else []
        if not rows:
            return None
        id, other, owner, phase, progress = rows[0]
        return Mark(id, other, owner, phase, json.loads(progress))

    def gone_to(self) -> str | None:
        return self.store.moved_to() if self.exists else None

    def count(self, table: str) -> int:
        return int(self._query(f"SELECT count(*) FROM holdfast_{table}")[0][0])

    # --- reading ---

    def _selected(self, table: Table, form: Kind, alias: str) -> str:
        parts = [expression(table, each, "sqlite", form, f'{alias}"{each}"') for each in table.columns]
        return ", ".join(parts)

    def upper(self, table: Table, after: Sequence[Any] | None, limit: int) -> list[Any] | None:
        names, where = _names(table.key), "" if after is None else f" WHERE {_beyond(table, '>')}"
        text = f"SELECT {names} FROM holdfast_{table.name}{where} ORDER BY {names} LIMIT 1 OFFSET {limit - 1}"
        rows = self._query(text, list(after or ()))
        return list(rows[0]) if rows else None

    def read(self, table: Table, after: Sequence[Any] | None, upper: Sequence[Any] | None, form: Kind) -> Rows:
        bounds = [_beyond(table, ">")] * (after is not None) + [_beyond(table, "<=")] * (upper is not None)
        where = f" WHERE {' AND '.join(bounds)}" if bounds else ""
        text = (
            f"SELECT {self._selected(table, form, '')} FROM holdfast_{table.name}{where} ORDER BY {_names(table.key)}"
        )
        return self._query(text, [*(after or ()), *(upper or ())])

    def size(self, table: Table, after: Sequence[Any] | None, upper: Sequence[Any] | None) -> int:
        if not (large := table.large):
            return 0
        bounds = [_beyond(table, ">")] * (after is not None) + [_beyond(table, "<=")] * (upper is not None)
        where = f" WHERE {' AND '.join(bounds)}" if bounds else ""
        sizes = " + ".join(f'coalesce(length("{each}"), 0)' for each in large)
        text = f"SELECT coalesce(sum({sizes}), 0) FROM holdfast_{table.name}{where}"
        return int(self._query(text, [*(after or ()), *(upper or ())])[0][0])

    def missing(self, table: Table, keys: Keys) -> list[int]:
        same = " AND ".join(f"t.\"{each}\" = json_extract(k.value, '$.{each}')" for each in table.key)
        rows = self._query(
            f"SELECT k.key FROM json_each(?) k WHERE NOT EXISTS (SELECT 1 FROM holdfast_{table.name} t WHERE {same})",
            (json.dumps(list(keys)),),
        )
        return [row[0] for row in rows]

    def fetch(self, table: Table, keys: Keys, form: Kind) -> Rows:
        same = " AND ".join(f"t.\"{each}\" = json_extract(k.value, '$.{each}')" for each in table.key)
        return self._query(
            f"SELECT {self._selected(table, form, 't.')} FROM json_each(?) k"
            f" CROSS JOIN holdfast_{table.name} t ON {same}",
            (json.dumps(list(keys)),),
        )

    # --- source ---

    def begin_noting(self, tables: Sequence[Table], target: str) -> None:
        with self._writing() as connection:
            for text in _TABLES.split(";"):
                connection.execute(text)
            connection.execute("DELETE FROM holdfast_move_mark")
            connection.execute(
                f"INSERT INTO holdfast_move_mark ({MARK_COLUMNS}) VALUES (?, ?, ?, 'copying', ?)",
                (self.id, target, self.owner, '{"noting": true}'),
            )
            for table in tables:
                for event, rows in _CHANGED.items():
                    notes = "".join(_NOTE.format(table=table.name, key=_object(table.key, row)) for row in rows)
                    self._create(connection, "note", table, event, f"AFTER {event}", notes)

    def _create(self, connection: StoreConnection, what: str, table: Table, event: str, when: str, body: str) -> None:
        name = f"holdfast_move_{what}_{table.name}_{event.lower()}"
        connection.execute(f"DROP TRIGGER IF EXISTS {name}")
        connection.execute(f"CREATE TRIGGER {name} {when} ON holdfast_{table.name} BEGIN {body} END")

    def notes(self) -> list[tuple[int, str, dict[str, Any]]]:
        rows = self._query(f"SELECT n, what, key FROM holdfast_move_note ORDER BY n LIMIT {NOTES}")
        return [(n, what, json.loads(key)) for n, what, key in rows]

    def forget(self, numbers: Sequence[int]) -> None:
        with self._writing() as connection:
            connection.executemany("DELETE FROM holdfast_move_note WHERE n = ?", [(n,) for n in numbers])

    def refuse(self, tables: Sequence[Table], target: str, until: float) -> None:
        with self._writing() as connection:
            done = connection.execute("UPDATE holdfast_move_mark SET phase = 'refusing' WHERE owner = ?", (self.owner,))
            if not done.rowcount:
                raise taken_over()
            self._fence(connection, tables, f"{MOVING}: this database is being moved to {target}")

    def _fence(self, connection: StoreConnection, tables: Sequence[Table], says: str) -> None:
        text = says.replace("'", "''")
        for table in tables:
            for event in _CHANGED:
                self._create(connection, "refuse", table, event, f"BEFORE {event}", f"SELECT RAISE(ABORT, '{text}');")

    def _drop(self, connection: StoreConnection, beginning: str) -> None:
        found = connection.execute(
            "SELECT name FROM sqlite_schema WHERE type = 'trigger' AND substr(name, 1, ?) = ?",
            (len(beginning), beginning),
        )
        for (name,) in found.fetchall():
            connection.execute(f"DROP TRIGGER {name}")

    def _drop_tables(self, connection: StoreConnection) -> None:
        for name in ("move_note", "move_mark"):
            connection.execute(f"DROP TABLE IF EXISTS holdfast_{name}")

    def stop_refusing(self) -> None:
        with self._writing() as connection:
            self._drop(connection, "holdfast_move_refuse_")
            connection.execute("UPDATE holdfast_move_mark SET phase = 'copying'")

    def admit(self) -> None:
        with self._writing() as connection:
            self._drop(connection, "holdfast_move_")
            self._drop_tables(connection)

    def leave(self, announced: str) -> None:
        with self._writing() as connection:
            fenced = connection.execute(
                "SELECT DISTINCT tbl_name FROM sqlite_schema"
                " WHERE type = 'trigger' AND name LIKE 'holdfast_move_refuse_%'"
            ).fetchall()
            tables = [Table(name.removeprefix(_PREFIX), (), {}, (), ()) for (name,) in fenced]
            self._drop(connection, "holdfast_move_note_")
            self._fence(connection, tables, f"{MOVED}: this database was moved to {shown_url(announced)}")
            connection.execute(MARK, (MOVED, announced))
            self._drop_tables(connection)

    def cursors(self) -> list[tuple[str, dict[str, Any], str | None]]:
        return []  # PostgreSQL reads them as they are, without the number of the action

    # --- target ---

    def check_empty(self, tables: Sequence[Table]) -> None:
        if self.exists:
            raise not_empty(f"{self.path} exists")

    def prepare(self, tables: Sequence[Table], source: str) -> None:
        with self._writing() as connection:
            apply(connection, self._plan, {}, at_once=True)
            drop_code(connection, {name.partition(" ")[2] for name in recorded(connection)})
            for table in tables:
                connection.execute(f"DELETE FROM holdfast_{table.name}")
            for text in _TABLES.split(";"):
                connection.execute(text)
            connection.execute(
                f"INSERT INTO holdfast_move_mark ({MARK_COLUMNS}) VALUES (?, ?, ?, 'receiving', ?)",
                (self.id, source, self.owner, json.dumps({"tables": {}})),
            )
            connection.execute(MARK, (MOVING, self.id))

    def take_over(self) -> Mark:
        with self._writing() as connection:
            connection.execute("UPDATE holdfast_move_mark SET owner = ?", (self.owner,))
        mark = self.mark()
        assert mark is not None
        return mark

    @contextmanager
    def _owning(self) -> Iterator[StoreConnection]:
        with self._writing() as connection:
            if not self._has("move_mark"):
                raise taken_over()  # the move is over
            own = "SELECT 1 FROM holdfast_move_mark WHERE owner = ? AND phase = 'receiving'"
            if not connection.execute(own, (self.owner,)).fetchall():
                raise taken_over()
            yield connection

    def _upsert(self, connection: StoreConnection, table: Table, rows: Rows) -> int:
        names, values = _names(table.columns), ", ".join("?" * len(table.columns))
        if table.name == "job_state":  # it has the number of its job
            names, values = (
                names + ", n",
                values + f", (SELECT n FROM holdfast_job WHERE id = ?{table.columns.index('id') + 1})",
            )
        sets = ", ".join(f'"{each}" = excluded."{each}"' for each in table.columns if each not in table.target_key)
        connection.executemany(
            f"INSERT INTO holdfast_{table.name} ({names}) VALUES ({values}) ON CONFLICT ({_names(table.target_key)})"
            f" DO {'UPDATE SET ' + sets if sets else 'NOTHING'}",
            rows,  # type: ignore[arg-type]  # rows from PostgreSQL are not text here
        )
        return len(rows)

    def store_rows(self, table: Table, rows: Rows, progress: Mapping[str, Any]) -> int:
        with self._owning() as connection:
            count = self._upsert(connection, table, rows)
            connection.execute(
                f"UPDATE holdfast_move_mark SET progress = json_set(progress, '$.tables.{table.name}', json(?))",
                (json.dumps(dict(progress)),),
            )
        return count

    def apply(self, changes: Iterable[Change]) -> None:
        with self._owning() as connection:
            for table, gone, rows in changes:
                if gone:
                    same = " AND ".join(f'"{each}" = :{each}' for each in table.key)
                    connection.executemany(f"DELETE FROM holdfast_{table.name} WHERE {same}", list(gone))
                self._upsert(connection, table, rows)

    def finish_copy(self, tables: Sequence[Table]) -> None:
        with translated():
            self._connection.execute("PRAGMA analysis_limit = 1000")
            self._connection.execute("ANALYZE")

    def open(
        self, tables: Sequence[Table], source: Kind, cursors: Sequence[tuple[str, dict[str, Any], str | None]]
    ) -> None:
        with self._owning() as connection:
            for name, key, cursor in cursors:
                same = " AND ".join(f'"{each}" = :{each}' for each in key)
                native = {each: int(value) if isinstance(value, bool) else value for each, value in key.items()}
                connection.execute(
                    f"UPDATE holdfast_{name} SET cursor = :cursor WHERE {same}", native | {"cursor": cursor}
                )
            # The position of a new job follows from its number, and is behind those of all others.
            for name in ("job", "job_state"):
                connection.execute(
                    f"UPDATE holdfast_{name} SET n = max(n, (SELECT max(position) / 100 + 1 FROM holdfast_job_state))"
                    f" WHERE id = (SELECT id FROM holdfast_job ORDER BY n DESC LIMIT 1)"
                )
            connection.execute(
                "INSERT INTO holdfast_action (tenant, at, actor, type, subject, name, changed) VALUES ('*', ?, 'move',"
                " 'adopt', 'database', 'main', ?)",
                (time.time_ns() // 1000, json.dumps({"origin": "moved"})),
            )
            if connection.execute("SELECT 1 FROM holdfast_dispatch WHERE fair IS NOT NULL").fetchall():
                connection.execute(FAIR_INDEX.sql)
            run_script(connection, self._plan.code)
            connection.execute("DELETE FROM holdfast_migration WHERE name = ?", (MOVING,))
            connection.execute("UPDATE holdfast_move_mark SET phase = 'open'")

    def close(self) -> None:
        with self._writing() as connection:
            connection.execute("UPDATE holdfast_move_mark SET phase = 'closed' WHERE phase = 'receiving'")

    def clear(self) -> None:
        """Remove the file. Another mover that still has it open finds there that the move was given up."""
        self._stack.close()
        self._opened = None
        for suffix in ("", "-wal", "-shm"):
            Path(self.path + suffix).unlink(missing_ok=True)

    def forget_move(self) -> None:
        with self._writing() as connection:
            self._drop_tables(connection)


def _object(columns: Iterable[str], row: str) -> str:
    return f"json_object({', '.join([_PAIR.format(column=column, row=row) for column in columns])})"


def _quoted(name: str) -> str:
    return f'"{name}"'


def _names(columns: Iterable[str]) -> str:
    return ", ".join(map(_quoted, columns))


def _beyond(table: Table, sign: str) -> str:
    return f"({_names(table.key)}) {sign} ({', '.join('?' * len(table.key))})"


@contextmanager
def translated() -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        raise translate(error) from error


def no_source(path: str) -> NotFound:
    return NotFound(f"database file {path} not found", code="no_database", fix="Check the URL of the source.")
