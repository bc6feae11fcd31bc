"""PostgreSQL as one of the two databases of a move.

A target has no triggers until it is opened, no row-level security for its owner, and no epoch: programs refuse it as a
copy that was not adopted.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import psycopg
from psycopg import sql

from holdfast.engine.redaction import shown_url
from holdfast.errors import HoldfastError, StoreUnavailable
from holdfast.features.moves.model import FILLED, Kind, Mark, Table, not_empty, taken_over
from holdfast.features.moves.postgres_reads import PostgresReads
from holdfast.features.moves.store import MARK_COLUMNS, NOTES, Change, Rows
from holdfast.stores.migrations import MOVED, MOVING
from holdfast.stores.postgres.connections import StoreConnection

_FENCE = """
create or replace function move_refuse() returns trigger language plpgsql as $$
begin
    if current_setting('holdfast.mover', true) is distinct from {id} then
        raise exception {says} using errcode = '57P03';
    end if;
    return null;
end $$
"""
_NOTE = """
create or replace function {function}() returns trigger
language plpgsql security definer set search_path from current as $$
begin
    if tg_op <> 'DELETE' then
        insert into move_note (what, key) select {name}, json_build_object({pairs}) from added r;
    end if;
    if tg_op <> 'INSERT' then
        insert into move_note (what, key) select {name}, json_build_object({pairs}) from gone r;
    end if;
    return null;
end $$
"""
_REFERENCING = {
    "insert": "referencing new table as added",
    "update": "referencing old table as gone new table as added",
    "delete": "referencing old table as gone",
}
# The purge of a partition truncates it, which no trigger notes: none is announced or carried out meanwhile.
_HOLD_PURGES = f"""
create or replace function move_note_hold() returns trigger language plpgsql as $$
begin
    raise exception '{MOVING}: no partition is purged while this database is being moved' using errcode = '57P03';
end $$;
create or replace trigger a_move_hold before update of announced on event_partition
    for each row when (old.announced is distinct from new.announced) execute function move_note_hold()
"""
# It exists only while a queue is shared (fair_shares.sql).
_FAIR = """
do $$ begin
    if exists (select from dispatch d where d.fair is not null) then
        create index if not exists fair on job_state (queue, tenant, priority desc, position, id)
            where state = 'queued' and due_at is null;
    end if;
end $$
"""
_UNREAD = {  # the first event that a cursor has not read
    "": "select min(e.seq) from events_after(%s, 1, %s) e",
    "a": "select min(e.seq) from app_events_after(%s, 1, %s) e",
}


class PostgresSide(PostgresReads):
    # --- source ---

    def begin_noting(self, tables: Sequence[Table], target: str) -> None:
        with self._transaction() as connection:
            connection.execute(
                "create table if not exists move_mark (id text, other text, owner text, phase text, progress jsonb);"
                "create table if not exists move_note"
                " (n bigint generated always as identity primary key, what text, key json);"
                "delete from move_mark"
            )
            connection.execute(
                f"insert into move_mark ({MARK_COLUMNS}) values (%s, %s, %s, 'copying', '{{}}')",
                (self.id, target, self.owner),
            )
            for table in tables:
                pairs = ", ".join(f"'{each}', r.\"{each}\"" for each in table.key)
                name, function = f"'{table.name}'", f"move_note_{table.name}"
                connection.execute(_NOTE.format(function=function, name=name, pairs=pairs))
        end = time.monotonic() + 60
        for table in tables:
            for event, referencing in _REFERENCING.items():
                self._trigger(
                    f'create or replace trigger move_note_{event} after {event} on "{table.name}" {referencing}'
                    f" for each statement execute function move_note_{table.name}()",
                    end,
                )
        self._trigger(_HOLD_PURGES, end)
        with self._transaction() as connection:
            connection.execute("""update move_mark set progress = '{"noting": true}'""")

    def _trigger(self, text: str, until: float) -> None:
        """Create a trigger, which waits for the transactions that have written to its table. Others wait behind it, so
        it waits briefly, several times."""
        while True:
            try:
                with self._transaction() as connection:
                    connection.execute("set local lock_timeout = '2s'")
                    connection.execute(text)
                return
            except HoldfastError as error:
                cause = error.__cause__
                if not isinstance(cause, psycopg.errors.LockNotAvailable | psycopg.errors.DeadlockDetected):
                    raise
                if time.monotonic() > until:
                    raise StoreUnavailable(
                        "a program keeps a transaction open in the source",
                        code="move_blocked",
                        fix="End it (holdfast doctor names it), then: holdfast move … --resume",
                    ) from error

    def notes(self) -> list[tuple[int, str, dict[str, Any]]]:
        rows = self._query(f"select n, what, key::text from move_note order by n limit {NOTES}")
        return [(n, what, json.loads(key)) for n, what, key in rows]

    def forget(self, numbers: Sequence[int]) -> None:
        with self._transaction() as connection:
            connection.execute("delete from move_note where n = any (%s)", (list(numbers),))

    def refuse(self, tables: Sequence[Table], target: str, until: float) -> None:
        if not self._query("update move_mark set phase = 'refusing' where owner = %s returning 1", self.owner):
            raise taken_over()
        self._fence(tables, f"{MOVING}: this database is being moved to {target}", until)
        with self._transaction() as connection:
            # What transactions of the past have left for later is done now: the target knows nothing of them.
            connection.execute("update unsure_wait set check_at = clock_now()")
            connection.execute("select recheck_waits('*', clock_now(), 100000)")
        while self._query("select seal_ledger(%s)", "move")[0][0]:
            pass

    def _fence(self, tables: Sequence[Table], says: str, until: float) -> None:
        text = sql.SQL(_FENCE).format(id=sql.Literal(self.id), says=sql.Literal(says.replace("%", "%%")))
        with self._transaction() as connection:
            connection.execute(text)
        for table in tables:
            self._trigger(
                f'create or replace trigger move_refuse before insert or update or delete or truncate on "{table.name}"'
                " for each statement execute function move_refuse()",
                until,
            )

    def _drop(self, *functions: str) -> None:
        """Drop functions with their triggers."""
        names = self._query(
            "select p.oid::regprocedure::text from pg_proc p where p.pronamespace = current_schema()::regnamespace"
            " and p.proname like any (%s)",
            list(functions),
        )
        for (name,) in names:
            self._trigger(f"drop function {name} cascade", time.monotonic() + 60)

    def stop_refusing(self) -> None:
        self._drop("move\\_refuse")
        self._query("update move_mark set phase = 'copying' returning 1")

    def admit(self) -> None:
        self._drop("move\\_refuse")
        self._drop("move\\_note\\_%")
        self.forget_move()

    def leave(self, announced: str) -> None:
        says = f"{MOVED}: this database was moved to {shown_url(announced)}"
        text = sql.SQL(_FENCE).format(id=sql.Literal(""), says=sql.Literal(says.replace("%", "%%")))
        with self._transaction() as connection:
            connection.execute(text)
            connection.execute(
                "insert into migration (name, digest) values (%s, %s) on conflict (name) do nothing", (MOVED, announced)
            )
        self._drop("move\\_note\\_%")
        self.forget_move()

    def cursors(self) -> list[tuple[str, dict[str, Any], str | None]]:
        found: list[tuple[str, dict[str, Any], str | None]] = []
        for table, key, tenant in (
            ("consumer", "tenant,name", "tenant"),
            ("subscription", "id", "tenant"),
            ("usage_place", "id", "'*'"),
        ):
            pairs = ", ".join(f"'{each}', t.\"{each}\"" for each in key.split(","))
            rows = self._query(f'select json_build_object({pairs})::text, {tenant}, t.cursor from "{table}" t')
            for names, scope, cursor in rows:
                found.append((table, json.loads(names), None if cursor is None else self._number(cursor, scope)))
        return found

    def _number(self, cursor: str, tenant: str) -> str:
        """A cursor that has read all events up to a number: those before the first that this one has not read."""
        prefix = "a" * cursor.startswith("a")
        ((first,),) = self._query(_UNREAD[prefix], cursor, tenant)
        if first is not None:
            return f"{prefix}{first - 1}"
        table = "app_event" if prefix else "event"
        return f"{prefix}{self._query(f'select coalesce(max(seq), 0) from {table}')[0][0]}"

    # --- target ---

    def check_empty(self, tables: Sequence[Table]) -> None:
        for table in tables:
            if table.name not in _SEEDS and self._query(f'select 1 from "{table.name}" limit 1'):
                raise not_empty(f"it has rows in {table.name}")

    def prepare(self, tables: Sequence[Table], source: str) -> None:
        with self._transaction() as connection:
            always = connection.execute(
                "select c.relname::text, t.tgname::text, t.tgenabled::text from pg_trigger t"
                " join pg_class c on c.oid = t.tgrelid where c.relnamespace = current_schema()::regnamespace"
                " and not t.tgisinternal and t.tgenabled <> 'O' and t.tgparentid = 0"
            ).fetchall()
            connection.execute("create table move_mark (id text, other text, owner text, phase text, progress jsonb)")
            connection.execute(
                f"insert into move_mark ({MARK_COLUMNS}) values (%s, %s, %s, 'receiving', %s)",
                (self.id, source, self.owner, json.dumps({"always": always, "tables": {}})),
            )
            connection.execute("insert into migration (name, digest) values (%s, %s)", (MOVING, self.id))
            for table in tables:
                connection.execute(
                    f'alter table "{table.name}" disable trigger user, no force row level security'.encode()
                )
            for name in _SEEDS:
                connection.execute(f'delete from "{name}"'.encode())
        self._fence(tables, f"{MOVING}: a database is being moved here from {source}", time.monotonic() + 60)

    def take_over(self) -> Mark:
        rows = self._query(f"update move_mark set owner = %s returning {MARK_COLUMNS}", self.owner)
        return Mark(*rows[0])

    def _own(self, connection: StoreConnection, lock: str = "share") -> dict[str, Any]:
        if not connection.execute("select to_regclass('move_mark')").fetchall()[0][0]:
            raise taken_over()  # the move is over
        rows = connection.execute(
            f"select progress from move_mark where owner = %s and phase = 'receiving' for {lock}".encode(),
            (self.owner,),
        ).fetchall()
        if not rows:
            raise taken_over()
        progress: dict[str, Any] = rows[0][0]
        return progress

    def _copy(self, connection: StoreConnection, table: Table, rows: Rows, into: str) -> int:
        names = ", ".join(f'"{each}"' for each in table.columns)
        cursor = connection.cursor()
        with cursor.copy(f"copy {into} ({names}) from stdin") as copy:
            if isinstance(rows, bytes):
                copy.write(rows)
            else:
                for row in rows:
                    copy.write_row(row)
        return cursor.rowcount

    def store_rows(self, table: Table, rows: Rows, progress: Mapping[str, Any]) -> int:
        with self._transaction() as connection:
            self._own(connection)
            count = (
                self._upsert(connection, table, rows)
                if table.filled
                else self._copy(connection, table, rows, f'"{table.name}"')
            )
            connection.execute(
                "update move_mark set progress = jsonb_set(progress, array['tables', %s], %s)",
                (table.name, json.dumps(dict(progress))),
            )
        return count

    def _upsert(self, connection: StoreConnection, table: Table, rows: Rows) -> int:
        stage = f"stage_{table.name}"
        if stage not in self._staged:
            connection.execute(f'create temporary table if not exists {stage} as select * from "{table.name}" limit 0')
        connection.execute(f"truncate pg_temp.{stage}")
        count = self._copy(connection, table, rows, f"pg_temp.{stage}")
        names = ", ".join(f'"{each}"' for each in (*table.columns, *table.filled))
        values = ", ".join(
            [*(f's."{each}"' for each in table.columns), *(FILLED[f"{table.name}.{each}"] for each in table.filled)]
        )
        sets = ", ".join(f'"{each}" = excluded."{each}"' for each in table.columns if each not in table.target_key)
        key = ", ".join(f'"{each}"' for each in table.target_key)
        connection.execute(
            f'insert into "{table.name}" ({names}) select {values} from pg_temp.{stage} s on conflict ({key})'
            f" do {'update set ' + sets if sets else 'nothing'}"
        )
        return count

    def apply(self, changes: Iterable[Change]) -> None:
        with self._transaction() as connection:
            self._own(connection)
            for table, gone, rows in changes:
                if gone:
                    same = " and ".join(f't."{each}" = k."{each}"' for each in table.key)
                    connection.execute(
                        f'delete from "{table.name}" t using json_populate_recordset(null::"{table.name}", %s::json) k'
                        f" where {same}",
                        (json.dumps(list(gone)),),
                    )
                if rows:
                    self._upsert(connection, table, rows)

    def finish_copy(self, tables: Sequence[Table]) -> None:
        for table in tables:
            with self._transaction() as connection:
                connection.execute(f'analyze "{table.name}"'.encode())
        with self._transaction() as connection:
            connection.execute(_FAIR)

    def open(
        self, tables: Sequence[Table], source: Kind, cursors: Sequence[tuple[str, dict[str, Any], str | None]]
    ) -> None:
        with self._transaction() as connection:
            progress = self._own(connection, "update")
            connection.execute("drop function move_refuse cascade")
            for table in tables:
                connection.execute(f'alter table "{table.name}" enable trigger user, force row level security'.encode())
            states = {"A": "enable always", "R": "enable replica", "D": "disable"}
            for name, trigger, state in progress["always"]:
                connection.execute(f'alter table "{name}" {states[state]} trigger "{trigger}"'.encode())
            if source == "sqlite":
                for name in ("consumer", "subscription", "usage_place"):
                    connection.execute(f"update {name} set cursor = split_part(cursor, ';', 1)".encode())
                connection.execute(f"update dispatch set capped = {FILLED['dispatch.capped']}".encode())
            connection.execute(_FAIR)
            connection.execute("update login_pin set tenant = tenant where false")  # compiles the pins (pins.sql)
            connection.execute("select adopt_copy('move')")
            connection.execute("delete from migration where name = %s", (MOVING,))
            connection.execute("update move_mark set phase = 'open'")

    def close(self) -> None:
        with self._transaction() as connection:
            connection.execute("update move_mark set phase = 'closed' where phase = 'receiving'")

    def clear(self) -> None:
        self._drop("move\\_%")
        with self._transaction() as connection:
            connection.execute("delete from migration where name = %s", (MOVING,))
            connection.execute("drop table if exists move_note, move_mark")
        self.store.uninstall(dry=False, force=True)
        self.store.migrate()

    def forget_move(self) -> None:
        with self._transaction() as connection:
            connection.execute("drop table if exists move_note, move_mark")


_SEEDS: Final = ("dispatch", "clock", "upkeep", "usage_place", "ledger_epoch")
"""Tables of which a new database has rows."""
