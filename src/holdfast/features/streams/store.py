"""Output streams in the database: port, shared reads, PostgreSQL and SQLite."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from holdfast.engine.ids import parse_id
from holdfast.engine.states import State
from holdfast.features.streams.model import PAGE_BYTES, PAGE_PARTS, StoredPart, StreamPart, parts_json
from holdfast.stores.codecs import Record
from holdfast.stores.flow import Statement, Steps, flow
from holdfast.stores.job_reads import Reader
from holdfast.stores.postgres.base import Calls
from holdfast.stores.reader import within
from holdfast.stores.sqlite.base import SqlitePart, act_under, end_write, ids_json


class StreamReads(Reader):
    @flow(writes=False)
    def read(
        self, job_id: str, stream: str, after: tuple[int, int, int], tenant: str
    ) -> Steps[tuple[State, list[StoredPart]] | None]:
        """The state of the job, and the parts of a stream after a position, up to about a megabyte; None without such
        a job. In one statement: of an ended job, these are all parts that it has written."""
        columns = Record.columns(StoredPart, "p.")
        text = (
            f"select s.state, {columns} from {{job_state}} s left join"
            " (select c.*, sum(length(c.chunks)) over (order by c.attempt, c.n) - length(c.chunks) as before from"
            " (select c.* from {stream_part} c where c.job_id = :id and c.stream = :stream"
            " and (c.attempt > :attempt or c.attempt = :attempt and (c.n > :n or c.n = :n and c.count > :i))"
            f" order by c.attempt, c.n limit {PAGE_PARTS}) c) p on p.job_id = s.id and p.before < {PAGE_BYTES}"
            f" where s.id = :id and {within(tenant, 's.tenant')} order by p.attempt, p.n"
        )
        attempt, n, i = after
        rows = yield from self._query(tenant, text, id=parse_id(job_id), stream=stream, attempt=attempt, n=n, i=i)
        if not rows:
            return None
        decode = Record.decoder(StoredPart, self.dialect.codec)
        return State(rows[0][0]), [decode(row[1:]) for row in rows if row[1] is not None]

    @flow(writes=False)
    def names(self, job_id: str, tenant: str) -> Steps[list[str]]:
        """The names of the streams that a job has written."""
        text = (
            "select distinct c.stream from {stream_part} c"
            f" where c.job_id = :id and {within(tenant, 'c.tenant')} order by 1"
        )
        return [row[0] for row in (yield from self._query(tenant, text, id=parse_id(job_id)))]


class PostgresStreams(Calls, StreamReads):
    @flow(single=True)
    def append(self, lease: str, parts: Sequence[StreamPart], tenant: str) -> Steps[list[str]]:
        """Append parts to streams of attempts that run under this lease. Writing a part again changes nothing. Returns
        the jobs whose attempt has ended or is held by another lease."""
        rows = yield self._call("append_stream", "%s, %s::json, %s", lease, parts_json(parts), tenant)
        return [str(row[0]) for row in rows]


_RUNNING = (
    "SELECT id, tenant, attempt FROM holdfast_job_state"
    " WHERE id IN (SELECT value FROM json_each(?)) AND +lease = ? AND +state = 'in_progress'"
)
_REPLACE = (
    "DELETE FROM holdfast_stream_part WHERE job_id = ?1 AND stream = ?4 AND section = ?5"
    " AND (attempt < ?2 OR attempt = ?2 AND n < ?3) RETURNING 1"
)
_WRITTEN = "SELECT 1 FROM holdfast_stream_part WHERE job_id = ? AND attempt = ? AND n = ?"
_APPEND = (
    "INSERT INTO holdfast_stream_part (job_id, tenant, attempt, n, stream, section, replaces, count, chunks, at)"
    " SELECT ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10"
    " WHERE NOT EXISTS (SELECT 1 FROM holdfast_stream_part p WHERE p.job_id = ?1 AND p.attempt = ?3 AND p.n = ?4)"
)


class SqliteStreams(SqlitePart, StreamReads):
    @flow(notifies=True)
    def append(self, lease: str, parts: Sequence[StreamPart], tenant: str) -> Steps[list[str]]:
        now = yield from act_under(lease, tenant)
        ids = ids_json(sorted({part.job_id for part in parts}))
        running = {(row[0], row[2]): row[1] for row in (yield Statement(_RUNNING, (ids, lease)))}
        rows: list[tuple[Any, ...]] = []
        stale: dict[str, None] = {}
        for part in parts:
            whose = running.get((part.job_id, part.attempt))
            if whose is None:
                stale[part.job_id] = None
                continue
            gone = []
            if part.starts and not (yield Statement(_WRITTEN, (part.job_id, part.attempt, part.n))):
                gone = yield Statement(_REPLACE, (part.job_id, part.attempt, part.n, part.stream, part.section))
            key = (part.job_id, whose, part.attempt, part.n, part.stream, part.section)
            rows.append((*key, int(bool(gone)), part.count, part.chunks, now))
        if rows:
            yield Statement(_APPEND, rows, many=True)
        yield from end_write()
        return list(stale)
