"""Logs of attempts in the database: port, shared read, PostgreSQL and SQLite."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from holdfast.engine.ids import parse_id
from holdfast.features.attempts.model import LogPart, log_parts_json
from holdfast.stores.codecs import Record
from holdfast.stores.flow import Statement, Steps, flow
from holdfast.stores.job_reads import Reader
from holdfast.stores.postgres.base import Calls
from holdfast.stores.reader import within
from holdfast.stores.sqlite.base import SqlitePart, act_under, end_write, ids_json


class AttemptReads(Reader):
    @flow(writes=False)
    def log(self, job_id: str, attempt: int, tenant: str) -> Steps[list[LogPart]]:
        """The parts of one attempt's log, in order."""
        text = (
            f"select {Record.columns(LogPart, 'l.')} from {{attempt_log}} l"
            f" where l.job_id = :id and l.attempt = :attempt and {within(tenant, 'l.tenant')} order by l.n"
        )
        return (yield from self._records(LogPart, tenant, text, id=parse_id(job_id), attempt=attempt))


class PostgresAttempts(Calls, AttemptReads):
    @flow(single=True)
    def append_log(self, lease: str, parts: Sequence[LogPart], tenant: str) -> Steps[list[str]]:
        """Append parts to the logs of attempts that run under this lease. Writing a part again changes nothing.
        Returns the jobs whose attempt has ended or is held by another lease."""
        rows = yield self._call("append_log", "%s, %s::json, %s", lease, log_parts_json(parts), tenant)
        return [str(row[0]) for row in rows]


_RUNNING = (
    "SELECT id, tenant, attempt FROM holdfast_job_state"
    " WHERE id IN (SELECT value FROM json_each(?)) AND +lease = ? AND +state = 'in_progress'"
)
# The trigger refuses an insert of an existing part, because it could be a REPLACE. So existing parts are skipped here.
_APPEND = (
    "INSERT INTO holdfast_attempt_log (job_id, tenant, attempt, n, at, lines, ref) SELECT ?1, ?2, ?3, ?4, ?5, ?6, ?7"
    " WHERE NOT EXISTS (SELECT 1 FROM holdfast_attempt_log l WHERE l.job_id = ?1 AND l.attempt = ?3 AND l.n = ?4)"
)


class SqliteAttempts(SqlitePart, AttemptReads):
    @flow()
    def append_log(self, lease: str, parts: Sequence[LogPart], tenant: str) -> Steps[list[str]]:
        now = yield from act_under(lease, tenant)
        ids = ids_json(sorted({part.job_id for part in parts}))
        running = {(row[0], row[2]): row[1] for row in (yield Statement(_RUNNING, (ids, lease)))}
        rows: list[tuple[Any, ...]] = []
        stale: dict[str, None] = {}
        for part in parts:
            job_tenant = running.get((part.job_id, part.attempt))
            if job_tenant is None:
                stale[part.job_id] = None
            else:
                rows.append((part.job_id, job_tenant, part.attempt, part.n, now, part.lines, part.ref))
        if rows:
            yield Statement(_APPEND, rows, many=True)
        yield from end_write()
        return list(stale)
