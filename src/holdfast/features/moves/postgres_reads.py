"""PostgreSQL as one of the two databases of a move: its connection, and reading."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import psycopg

from holdfast.errors import InvalidSetting, Refused, StoreError, StoreUnavailable
from holdfast.features.moves.model import Kind, Mark, Shape, Table, expression
from holdfast.features.moves.store import MARK_COLUMNS, Keys, Rows, Side
from holdfast.stores.postgres.connections import StoreConnection, connected
from holdfast.stores.postgres.errors import translate
from holdfast.stores.postgres.store import PostgresDatabase

_SHAPES = """
select c.relname::text, jsonb_object_agg(a.attname, format_type(a.atttypid, a.atttypmod) order by a.attnum)::text,
       array(select k.attname::text from pg_index i cross join unnest(i.indkey) with ordinality o (attnum, n)
              join pg_attribute k on k.attrelid = c.oid and k.attnum = o.attnum
             where i.indrelid = c.oid and i.indisprimary order by o.n),
       array_agg(a.attname::text order by a.attnum)
  from pg_class c join pg_attribute a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
 where c.relnamespace = to_regnamespace(%s) and c.relkind in ('r', 'p') and not c.relispartition
   and c.relname not like 'move\\_%%'
 group by c.oid, c.relname
"""
_COUNT = """
select coalesce(sum(c.reltuples) filter (where c.reltuples > 0), 0)::bigint
  from pg_partition_tree(%s::text::regclass) t join pg_class c on c.oid = t.relid
"""


class PostgresReads(Side):
    kind: Kind = "postgres"

    def __init__(self, store: PostgresDatabase, stack: ExitStack) -> None:
        super().__init__(store)  # type: ignore[arg-type]
        self.schema = store.schema_name
        self._stack = stack
        self._staged: set[str] = set()
        self._opened: StoreConnection | None = None
        self._known_as = ""

    @property
    def _connection(self) -> StoreConnection:
        if self._opened is None:
            with translated():
                self._opened = self._stack.enter_context(connected(self.url))
            if not self._opened.direct:
                raise InvalidSetting(
                    f"{self.shown} is a pooler",
                    code="move_pooler",
                    fix="Name the server itself: a move needs sessions of its own.",
                )
            self._opened.execute(f'set search_path = "{self.schema}", pg_catalog, pg_temp')
            self._opened.execute("set holdfast.tenant = '*'")  # also the owner sees rows by its tenant
            for name in ("statement_timeout", "idle_in_transaction_session_timeout", "jit"):
                self._opened.execute(f"set {name} = 0".encode())
        return self._opened

    @contextmanager
    def _transaction(self) -> Iterator[StoreConnection]:
        with self._session() as connection, connection.transaction():
            yield connection

    @contextmanager
    def _session(self) -> Iterator[StoreConnection]:
        with translated():
            connection = self._connection
            if self._known_as != self.id:
                connection.execute("select set_config('holdfast.mover', %s, false)", (self.id,))
                self._known_as = self.id
            yield connection

    def _query(self, text: str, *params: Any) -> list[Any]:
        with self._session() as connection:
            return connection.execute(text.encode(), params or None).fetchall()

    def identity(self) -> str:
        ((name, start),) = self._query("select current_database()::text, pg_postmaster_start_time()::text")
        return f"{start} {name} {self.schema}"

    def check(self) -> None:
        rows = self._query(
            "select current_setting('server_encoding'), current_setting('transaction_read_only'),"
            " (select bool_and(pg_has_role(c.relowner, 'usage')) from pg_class c"
            "   where c.relnamespace = to_regnamespace(%s) and c.relkind in ('r', 'p'))",
            self.schema,
        )
        encoding, read_only, owns = rows[0]
        if encoding != "UTF8":
            raise InvalidSetting(
                f"{self.shown} has the encoding {encoding}",
                code="move_encoding",
                fix="Create the database with encoding UTF8.",
            )
        if read_only == "on":
            raise StoreUnavailable(f"{self.shown} is read-only", code="store_read_only", fix="Name the primary.")
        if owns is False:
            raise Refused(
                f"this login does not own the tables of {self.shown}",
                code="move_not_owner",
                fix="Use the login that runs `holdfast migrate`.",
            )

    @property
    def exists(self) -> bool:
        return bool(self.shapes())

    def shapes(self) -> dict[str, Shape]:
        found = {}
        for name, types, key, columns in self._query(_SHAPES, self.schema):
            kinds = json.loads(types)
            found[name] = Shape({column: kinds[column] for column in columns}, tuple(key))
        return found

    def mark(self) -> Mark | None:
        if not self._query("select to_regclass('move_mark')")[0][0]:
            return None
        rows = self._query(f"select {MARK_COLUMNS} from move_mark")
        return Mark(*rows[0]) if rows else None

    def count(self, table: str) -> int:
        about = int(self._query(_COUNT, f'"{self.schema}"."{table}"')[0][0])
        return about or int(self._query(f'select count(*) from "{table}"')[0][0])

    # --- reading ---

    def _selected(self, table: Table, form: Kind, alias: str = "t") -> str:
        parts = [expression(table, each, "postgres", form, f'{alias}."{each}"') for each in table.columns]
        return ", ".join(parts)

    def _beyond(self, table: Table, sign: str) -> str:
        names = ", ".join(f't."{each}"' for each in table.key)
        casts = ", ".join(f"%s::{table.types[each]}" for each in table.key)
        return f"({names}) {sign} ({casts})"

    def upper(self, table: Table, after: Sequence[Any] | None, limit: int) -> list[Any] | None:
        names = ", ".join(f't."{each}"::text' for each in table.key)
        order = ", ".join(f't."{each}"' for each in table.key)
        where = "" if after is None else f" where {self._beyond(table, '>')}"
        text = f'select {names} from "{table.name}" t{where} order by {order} limit 1 offset {limit - 1}'
        rows = self._query(text, *(after or ()))
        return list(rows[0]) if rows else None

    def read(self, table: Table, after: Sequence[Any] | None, upper: Sequence[Any] | None, form: Kind) -> Rows:
        bounds = [self._beyond(table, ">")] * (after is not None) + [self._beyond(table, "<=")] * (upper is not None)
        where = f" where {' and '.join(bounds)}" if bounds else ""
        order = ", ".join(f't."{each}"' for each in table.key)  # a parent is stored before what refers to it
        text = f'select {self._selected(table, form)} from "{table.name}" t{where} order by {order}'
        return self._rows(text, [*(after or ()), *(upper or ())], form)

    def size(self, table: Table, after: Sequence[Any] | None, upper: Sequence[Any] | None) -> int:
        if not (large := table.large):
            return 0
        bounds = [self._beyond(table, ">")] * (after is not None) + [self._beyond(table, "<=")] * (upper is not None)
        where = f" where {' and '.join(bounds)}" if bounds else ""
        sizes = " + ".join(f'coalesce(pg_column_size(t."{each}"), 0)' for each in large)
        text = f'select coalesce(sum({sizes}), 0) from "{table.name}" t{where}'
        return int(self._query(text, *(after or ()), *(upper or ()))[0][0])

    def missing(self, table: Table, keys: Keys) -> list[int]:
        same = " and ".join(f't."{each}" = k."{each}"' for each in table.key)
        rows = self._query(
            f"select (j.n - 1)::integer from json_array_elements(%s::json) with ordinality j (key, n)"
            f' cross join lateral json_populate_record(null::"{table.name}", j.key) k'
            f' where not exists (select from "{table.name}" t where {same}) order by 1',
            json.dumps(list(keys)),
        )
        return [row[0] for row in rows]

    def fetch(self, table: Table, keys: Keys, form: Kind) -> Rows:
        same = " and ".join(f't."{each}" = k."{each}"' for each in table.key)
        text = (
            f'select {self._selected(table, form)} from "{table.name}" t'
            f' join json_populate_recordset(null::"{table.name}", %s::json) k on {same}'
        )
        return self._rows(text, [json.dumps(list(keys))], form)

    def _rows(self, text: str, params: Sequence[Any], form: Kind) -> Rows:
        with self._session() as connection:
            if form == "sqlite":
                return connection.execute(text.encode(), params).fetchall()
            with connection.cursor().copy(f"copy ({text}) to stdout".encode(), params) as copy:
                return b"".join(bytes(each) for each in copy)


@contextmanager
def translated() -> Iterator[None]:
    try:
        yield
    except psycopg.DataError as error:
        where = (error.diag.context or "").split("\n")[0]
        raise StoreError(
            f"a value does not fit: {str(error).splitlines()[0]} ({where})",
            code="move_value",
            fix="Give the move up with --abort, and correct the row in the source.",
        ) from error
    except psycopg.Error as error:
        raise translate(error) from error
