"""Rows of every table with invalid values in every column, and every read operation of the store.

The columns come from the catalogue of each store. Invalid values are written with triggers disabled; constraints stay,
and a value that a table refuses is skipped.
"""

from __future__ import annotations

import sqlite3
import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

import psycopg
from typing_extensions import override

from holdfast import App, Context, Retry
from holdfast.app.internals import kinds_of, session_of
from holdfast.features.approvals.model import ApprovalFilter
from holdfast.features.audit.store import ActionFilter, EventFilter
from holdfast.features.dead_letters.model import GroupFilter
from holdfast.features.jobs.store import story, why
from holdfast.stores.flow import Flow
from holdfast.stores.requests import JobFilter
from tests.support.operations import operation
from tests.support.sqlite_names import PREFIX, on_sqlite
from tests.support.workers import work_off

DEEP = "[" * 5_000 + "]" * 5_000
HUGE = "x" * 100_000
Row = dict[str, Any]


@dataclass(frozen=True)
class Column:
    table: str
    name: str
    type: str
    key: bool
    nullable: bool


class RowEditor(ABC):
    """A connection with all rights."""

    values: ClassVar[dict[str, tuple[Any, ...]]]
    """Invalid values by column type."""

    @abstractmethod
    def columns(self) -> list[Column]: ...

    @abstractmethod
    def rows(self, table: str) -> list[Row]: ...

    @abstractmethod
    def _try(self, text: str, values: list[Any]) -> bool:
        """Execute a statement with a mark `{}` for each value; False if the table refuses it."""

    def insert(self, table: str, row: Row) -> bool:
        names, marks = ", ".join(f'"{name}"' for name in row), ", ".join("{}" for _ in row)
        return self._try(f"insert into {table} ({names}) values ({marks})", [*row.values()])

    def update(self, column: Column, value: Any, key: str, of: Any) -> bool:
        return self._try(f'update {column.table} set "{column.name}" = {{}} where "{key}" = {{}}', [value, of])

    @abstractmethod
    @contextmanager
    def unguarded(self) -> Iterator[None]:
        """Disable the triggers during the block."""

    @abstractmethod
    def close(self) -> None: ...

    def invalid_values(self, column: Column) -> tuple[Any, ...]:
        return (*((None,) if column.nullable else ()), *self.values.get(column.type, ()))

    def new_key(self, column: Column, value: Any, number: int) -> Any:
        """Make another key of the same type."""
        if column.name == "hash":
            return f"{number:064x}"
        if column.type == "uuid" or (isinstance(value, str) and len(value) == 36 and value.count("-") == 4):
            return str(uuid.UUID(int=uuid.UUID(str(value)).int + number))
        if isinstance(value, int) and not isinstance(value, bool):
            return 1_000_000 + number
        return f"{value} {number}" if isinstance(value, str) else value


class SqliteRowEditor(RowEditor):
    values: ClassVar = {
        "INTEGER": (2**63 - 1, -(2**63)),
        "TEXT": ("", "{", "[null]", "7", DEEP, HUGE, b"\xff\xfe"),
        "REAL": (1e308, -1e308, float("inf")),
        "BLOB": (b"",),
    }

    def __init__(self, url: str) -> None:
        self._connection = sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None)
        self._connection.row_factory = sqlite3.Row
        self._connection.text_factory = lambda data: data.decode(errors="replace")

    @override
    def columns(self) -> list[Column]:
        tables = self._connection.execute("select name from sqlite_schema where type = 'table' order by name")
        return [
            Column(
                table.removeprefix(PREFIX),
                row["name"],
                row["type"],
                bool(row["pk"]),
                not row["notnull"] and not row["pk"],
            )
            for (table,) in tables.fetchall()
            for row in self._connection.execute(f"pragma table_info({table})")
        ]

    @override
    def rows(self, table: str) -> list[Row]:
        return [dict(row) for row in self._connection.execute(f"select * from {PREFIX}{table}")]

    @override
    def _try(self, text: str, values: list[Any]) -> bool:
        # Bytes become text that is not UTF-8.
        marks = ["cast(? as text)" if isinstance(value, bytes) and value else "?" for value in values]
        try:
            return self._connection.execute(on_sqlite(text).format(*marks), values).rowcount > 0
        except (sqlite3.IntegrityError, sqlite3.OperationalError):
            return False

    @override
    @contextmanager
    def unguarded(self) -> Iterator[None]:
        triggers = self._connection.execute("select name, sql from sqlite_schema where type = 'trigger'").fetchall()
        self._connection.execute("begin immediate")
        for name, _ in triggers:
            self._connection.execute(f'drop trigger "{name}"')
        yield
        for _, text in triggers:
            self._connection.execute(text)
        self._connection.execute("commit")

    @override
    def close(self) -> None:
        self._connection.close()


class PostgresRowEditor(RowEditor):
    values: ClassVar = {
        "timestamptz": ("infinity", "-infinity", "4713-01-01 00:00:00 BC", "294276-12-31 00:00:00Z"),
        "int2": (32767, -32768),
        "int4": (2**31 - 1, -(2**31)),
        "int8": (2**63 - 1, -(2**63)),
        "float8": ("NaN", "Infinity", -1e308),
        "text": ("", "{", HUGE),
        "state": (),
        "json": ("null", "7", "[null]", '"\\ud800"', DEEP),
        "jsonb": ("null", "7", "[null]", '{"a": "x"}', DEEP),
        "_text": ("{}", "{NULL}", "{{a,b},{c,d}}"),
        "uuid": ("00000000-0000-0000-0000-000000000000",),
        "bytea": (b"",),
        "interval": ("-1000 years", "178000000 years"),
        "date": ("infinity", "4713-01-01 BC"),
    }

    def __init__(self, url: str) -> None:
        self._connection = psycopg.connect(url, autocommit=True, row_factory=psycopg.rows.dict_row)
        for name in ("timestamptz", "uuid", "json", "jsonb", "interval", "date"):
            self._connection.adapters.register_loader(name, psycopg.types.string.TextLoader)
        self._connection.execute("select set_config('holdfast.tenant', '*', false)")
        self._connection.execute("set search_path = holdfast, pg_catalog")

    @override
    def columns(self) -> list[Column]:
        rows = self._connection.execute(
            "select c.relname as table, a.attname as name, t.typname as type, not a.attnotnull as nullable,"
            " exists (select from pg_index i where i.indrelid = c.oid and i.indisprimary and a.attnum = any (i.indkey))"
            " as key"
            " from pg_attribute a join pg_class c on c.oid = a.attrelid join pg_type t on t.oid = a.atttypid"
            " where c.relnamespace = 'holdfast'::regnamespace and c.relkind in ('r', 'p') and a.attnum > 0"
            " and not a.attisdropped order by 1, a.attnum"
        )
        return [Column(**row) for row in rows]

    @override
    def rows(self, table: str) -> list[Row]:
        return self._connection.execute(f'select * from "{table}"'.encode()).fetchall()

    @override
    def _try(self, text: str, values: list[Any]) -> bool:
        try:
            with self._connection.transaction():
                return self._connection.execute(text.format(*("%s" for _ in values)).encode(), values).rowcount > 0
        except (psycopg.IntegrityError, psycopg.DataError, psycopg.NotSupportedError, psycopg.OperationalError):
            return False

    @override
    @contextmanager
    def unguarded(self) -> Iterator[None]:
        self._connection.execute("set session_replication_role = replica")
        self._connection.execute("alter table job_state disable trigger record_transition")  # it fires in every role
        yield
        self._connection.execute("alter table job_state enable always trigger record_transition")
        self._connection.execute("set session_replication_role = origin")

    @override
    def close(self) -> None:
        self._connection.close()


# Columns of composite keys that stay: they have few valid values, or name the owner of the row.
_FIXED = {"tenant", "job_id", "state", "scope", "type", "action", "manual", "attempt", "child"}
_UNIQUE = {"hash", "seq", "key", "number", "name", "fingerprint"}


def insert_bad_rows(editor: RowEditor, table: str, columns: list[Column]) -> set[str]:
    """Insert a copy of the first row, with a new key, for each invalid value of each column. Returns the columns."""
    changed_columns: set[str] = set()
    rows = editor.rows(table)
    keys = [column for column in columns if column.key]
    unique = [column for column in keys if column.name not in _FIXED] or keys[-1:]
    unique += [column for column in columns if column.name in _UNIQUE and column not in unique]
    number = 0
    # The largest integer leaves no number for the next row: that is not a bad row but the end of the table.
    numbered = {column.name for column in keys if column.type in ("INTEGER", "int8")}
    for column in (each for each in columns if rows and each.name not in numbered):
        for value in editor.invalid_values(column):
            number += 1
            row = dict(rows[0])
            for each in unique:
                row[each.name] = editor.new_key(each, row[each.name], number)
            row[column.name] = value
            if editor.insert(table, row):
                changed_columns.add(column.name)
    return changed_columns


def open_editor(url: str) -> RowEditor:
    return SqliteRowEditor(url) if url.startswith("sqlite:") else PostgresRowEditor(url)


# -- rows and reads ------------------------------------------------------------------------------------------------


def fill_every_table(app: App) -> None:
    """Create at least one row of every table, by real operations."""

    @app.job("rich", retry=Retry(max_attempts=1))
    async def rich(ctx: Context, n: int) -> dict[str, int]:
        await ctx.checkpoint.save(3, "half")
        await ctx.step("one", lambda: 1)
        await ctx.artifact("file", "s3://bucket/file")
        await ctx.progress(0.5, "half")
        if n == 2:
            raise ValueError("broken")
        if n == 3:
            await ctx.approval("approval", summary="May it?", expires_in="10d", remind_every="1d")
        if n == 4:
            await ctx.sleep("10d")
        return {"n": n}

    kind = kinds_of(app)["rich"].kind
    using = {"tags": ["red"], "key": "k", "source_ref": "s3://in", "agent": "planner", "correlation_id": "order"}
    app.agents.set("planner", kind="rich")
    app.enqueue("rich", {"n": 1}, **using)  # type: ignore[arg-type]
    for n in (2, 3, 4):
        kind.enqueue(n)
    flow = app.workflow("publish")
    first = flow.add(kind, 5, name="first")
    flow.add(kind, 6, after=first, name="last")
    flow.start()
    app.subscriptions.set("follow", "job.succeeded", "elsewhere")
    app.webhooks.add("hook", "https://hooks.example/in", secrets="HOOK", wants=["job.dead_letter"])
    app.connectors.set("http.request", hosts=["api.example"])
    app.templates.set("letter", "elsewhere", {"n": 1})
    app.schedules.add("daily", "0 9 * * *", kind="elsewhere", payload={"n": 1})
    app.limits.set(queue="mail", concurrency=3, rate="5/s")
    app.pauses.set(queue="shut", reason="closed", tenant="default")
    app.payload_rules.set("mail", max_bytes=1_000_000)
    app.retention.set(kind="mail", clean_after="900d")
    app.tenants.set("acme", title="Acme", max_pending=1000)
    app.tokens.issue("ci", roles=["viewer"])
    app.reservations.set("00000000-0000-7000-8000-000000000001", queue="private", ttl="1h", reason="mine")
    app.send_event("paid", {"order": 7}, key="once")
    work_off(app, queues=("default",))
    for _ in zip(range(101), app.events.read("reader", page=1), strict=False):
        pass
    (approval,) = app.approvals.list()
    app.approvals.issue_token(approval.id, person="ada", expires_in="1h")
    app.schedules.run("daily")
    (group,) = app.dead_letters.groups()
    (dead,) = app.dead_letters.jobs(group.fingerprint)
    app.dead_letters.redrive_as(dead.id, {"n": 1})
    app.operations.start("redrive", reason="again", kind="rich", state="dead_letter")
    session_of(app).store.run(session_of(app).store.usage.count(1000, True))
    app.audit.seal()
    app.enqueue("rich", {"n": 9}, queue="mail")


def reads(app: App, rows: dict[str, list[Row]]) -> Iterator[tuple[str, Flow[Any]]]:
    """Yield every read operation of the store, for each object in the rows."""
    store, every = session_of(app).store, "*"
    for name in (
        *("pauses.list", "limits.list", "connectors.list", "consumers.list", "webhooks.list", "subscriptions.list"),
        *("payload_rules.list", "schedules.list", "templates.list", "agents.list", "workflows.list"),
        *("reservations.list", "operations.list", "retention.list", "tokens.list", "tenants.list", "health.get"),
        *("health.activity", "health.workers", "jobs.counts", "subscriptions.active", "queues.list"),
        "health.statistics",
    ):
        yield name, operation(store, name)(every)
    yield "executors", store.executors.list()
    yield "approvals", store.approvals.list(ApprovalFilter(tenant=every, state=None))
    yield "actions", store.audit.actions(ActionFilter(tenant=every))
    yield "recent_events", store.audit.recent_events(EventFilter(tenant=every))
    yield "dead_letter_groups", store.dead_letters.groups(GroupFilter(tenant=every, resolved=True))
    yield "events_after", store.ledger.read(None, 1000, every)
    yield "app_events_after", store.ledger.read_sent(None, 1000, every)
    yield "usage", store.usage.list(("tenant",), every)
    yield "preview_retention", store.retention.preview(every)
    yield "due_schedules", store.schedules.due(("rich",), 100, every)
    yield "next_operation", store.operations.next(every)
    yield "list_jobs", store.jobs.list(JobFilter(tenant=every, limit=1000))
    yield "notes", store.jobs.notes(JobFilter(tenant=every, limit=1000))
    yield "seal", store.audit.get_seal()
    jobs = {str(row["job_id"]) for table in rows.values() for row in table if row.get("job_id")}
    for job in sorted(jobs):
        if len(job) == 36:
            for name in (
                *("jobs.get", "jobs.history", "jobs.attempts", "jobs.artifacts", "jobs.checkpoints", "jobs.result"),
                *("steps.list", "jobs.references", "templates.made_from", "jobs.chain", "jobs.circumstances"),
                *("dead_letters.group_of", "dead_letters.remade", "workflows.parent_results", "tenants.next_share"),
            ):
                yield name, operation(store, name)(job, every)
            yield "story", story(store, job, every)
            yield "why", why(store, job, every)
    of_object: dict[str, tuple[str, tuple[Any, ...]]] = {
        "approval": ("approvals.votes", ()),
        "workflow": ("workflows.graph", ()),
        "schedule": ("schedules.fires", ()),
        "webhook": ("webhooks.deliveries", (100,)),
        "subscription": ("subscriptions.deliveries", (False, 100)),
    }
    for table, (name, more) in of_object.items():
        for row in rows.get(table, []):
            if len(str(row["id"])) == 36:
                yield name, operation(store, name)(row["id"], every, *more)
                if table == "approval":
                    yield "approval", store.approvals.get(row["id"], every)
