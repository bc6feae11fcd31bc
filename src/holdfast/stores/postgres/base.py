"""``Calls``: the base of the PostgreSQL operations, each of which calls one function of the schema; the clock."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, TypeVar

from holdfast.stores.codecs import Record
from holdfast.stores.flow import Statement, Steps, flow
from holdfast.stores.job_reads import Reader
from holdfast.stores.postgres.codec import PostgresCodec
from holdfast.stores.reader import LONGEST_TERM, Dialect

R = TypeVar("R")


class Calls(Reader):
    _s: str
    """The schema, quoted, with its dot."""

    def __init__(self, schema: str) -> None:
        self._s = f'"{schema}".'
        self.dialect = Dialect(
            PostgresCodec(),
            self._s,
            percent=True,
            bind=self._bind,
            has=lambda column, parameter: f"{parameter} = any ({column})",
            nobody="{}",
            comparable=lambda column: f"{column}::jsonb",
            never="infinity",
            minute=lambda column: f"floor(date_part('epoch', {column}) / 60)::bigint",
            document="cast({} as json)",
            texts="json_build_array({})",
            searchable="(select case when v.d::text not like '{{\"$holdfast\"%' then v.d end"
            " from (select {} as d offset 0) v)",
            # "offset 0" keeps the planner from repeating the expression above for each use.
            key="(select case json_typeof(v.d) when 'array' then v.d -> cast({index} as integer)"
            " when 'object' then v.d -> cast(:{key} as text) end from (select {above} as d offset 0) v)",
            scalar="(select case when json_typeof(v.d) not in ('object', 'array')"
            f" and length(v.d::text) <= {LONGEST_TERM} then v.d::text end from (select {{}} as d offset 0) v)",
        )

    def _bind(self, tenant: str) -> Statement:
        """Bind the transaction to a tenant, and turn JIT off for it: on large tables the estimated cost of our reads
        exceeds ``jit_above_cost``, and compiling takes longer than the read. The setting ends with the transaction, so
        it works behind a pooler."""
        return Statement(f"select {self._s}enter(%s), set_config('jit', 'off', true)", (tenant,), binds=True)

    def _call(self, name: str, arguments: str, *params: Any) -> Statement:
        return Statement(f"select * from {self._s}{name}({arguments})", params)

    def _call_with(self, name: str, arguments: Mapping[str, Any], columns: str = "*") -> Statement:
        """Call a function with named arguments."""
        named = ", ".join(f"{each} => %s" for each in arguments)
        return Statement(f"select {columns} from {self._s}{name}({named})", tuple(arguments.values()))

    def _call_as(self, record: type[R], name: str, arguments: str, *params: Any) -> Steps[list[R]]:
        """Call a function that returns rows with the columns of a record."""
        text = f"select {Record.columns(record)} from {self._s}{name}({arguments})"
        return (yield from self._rows_as(record, Statement(text, params)))

    def _flag(self, name: str, arguments: str, *params: Any) -> Steps[bool]:
        """Call a function that returns a boolean."""
        rows = yield self._call(name, arguments, *params)
        return bool(rows[0][0])

    def _number(self, name: str, arguments: str, *params: Any) -> Steps[int]:
        """Call a function that returns a number."""
        rows = yield self._call(name, arguments, *params)
        return int(rows[0][0])

    def _look(self, name: str, arguments: str, *params: Any) -> Statement:
        """Call a function that binds itself to its tenant and only reads."""
        return replace(self._call(name, arguments, *params), alone=True)


class PostgresClock(Calls):
    @flow(writes=False, single=True)
    def now(self) -> Steps[datetime]:
        rows = yield replace(self._call("clock_now", ""), reads=True)
        return self.dialect.codec.time(rows[0][0])

    @flow(single=True)
    def set(self, shift: timedelta, stopped: datetime | None) -> Steps[None]:
        yield self._call("set_clock", "%s, %s", shift, stopped)
