"""Archives in the database: port, shared reads, PostgreSQL and SQLite."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from holdfast.engine.ids import parse_id
from holdfast.engine.job import EVERY_TENANT
from holdfast.errors import NotFound
from holdfast.features.archives.model import Archive, Document, Finished, Walk
from holdfast.stores.codecs import Record, from_micros, micros
from holdfast.stores.flow import Row, Rows, Statement, Steps, flow
from holdfast.stores.job_reads import Reader
from holdfast.stores.postgres.base import Calls
from holdfast.stores.reader import within
from holdfast.stores.sqlite.base import SqlitePart, any_tenant, begin_write, end_write, ids_json

Found = list[Archive]  # inside a class, ``list`` is an operation


_COLUMNS = Record.columns(Archive, "a.")


class ArchiveReads(Reader):
    @flow(writes=False)
    def list(self, tenant: str, before: str | None = None, limit: int = 50) -> Steps[Found]:
        older = "" if before is None else " and a.id < :before"
        params = {} if before is None else {"before": parse_id(before)}
        return (yield from self._found(tenant, f"1 = 1{older}", f"a.id desc limit {limit:d}", **params))

    @flow(writes=False)
    def get(self, archive: str, tenant: str) -> Steps[Archive | None]:
        found = yield from self._found(tenant, "a.id = :id", "a.id", id=parse_id(archive))
        return found[0] if found else None

    @flow(writes=False)
    def with_job(self, job_id: str, tenant: str, skip: int = 0) -> Steps[Found]:
        # Ids sort by time, and a file has jobs of one day: usually few files contain the range of an id.
        """The archives that may contain a job, oldest first: a page of them, after ``skip``."""
        between, page = "a.first_job <= :id and a.last_job >= :id", f"limit 100 offset {skip:d}"
        return (yield from self._found(tenant, between, f"a.created_at, a.id {page}", id=parse_id(job_id)))

    @flow(writes=False)
    def seal_digest(self, number: int, tenant: str) -> Steps[str | None]:
        rows = yield from self._query(tenant, "select s.digest from {seal} s where s.number = :number", number=number)
        return rows[0][0] if rows else None

    def _found(self, tenant: str, condition: str, order: str, **params: Any) -> Steps[Found]:
        text = f"select {_COLUMNS} from {{archive}} a where {within(tenant, 'a.tenant')} and {condition}"
        return (yield from self._records(Archive, tenant, f"{text} order by {order}", **params))


class PostgresArchives(Calls, ArchiveReads):
    @flow(single=True)
    def walk(self, after: str, look: int = 2000, tenant: str = EVERY_TENANT) -> Steps[Walk]:
        """Read ``look`` jobs after this id; of these, those whose policy wants an archive and that are due."""
        ((ids, tenants, ends, reached, more),) = yield self._call("unarchived", "%s::uuid, %s, %s", after, look, tenant)
        jobs = [Finished(str(id), whose, at) for id, whose, at in zip(ids, tenants, ends, strict=True)]
        return Walk(jobs, str(reached), more)

    @flow(single=True)
    def rows(self, jobs: Sequence[str], tenant: str) -> Steps[list[Document]]:
        """The rows of jobs, by table, as they are stored; only of those that have to be archived now."""
        rows = yield self._call("archive_rows", "%s::uuid[], %s", list(jobs), tenant)
        return [json.loads(document) for _, document in rows]

    @flow(single=True)
    def record(
        self, archive: str, ref: str, size: int, jobs: Sequence[Finished], actor: str, tenant: str
    ) -> Steps[Archive]:
        """Record a stored archive. Jobs that have changed since they were read stay unarchived."""
        ids, ends = [job.id for job in jobs], [job.finished_at for job in jobs]
        params = "%s::uuid, %s, %s, %s::uuid[], %s::timestamptz[], %s, %s"
        rows = yield self._call("record_archive", params, archive, ref, size, ids, ends, actor, tenant)
        return _recorded(Record.decoder(Archive, self.dialect.codec), rows)


# The rule of features/retention/model.py: the policy that no more specific one overrides.
_WAS = "CASE s.state WHEN 'cleaned' THEN coalesce(json_extract(s.note, '$.was'), 'succeeded') ELSE s.state END"
_MATCHES = (
    "r.tenant IN (s.tenant, '*') AND r.kind IN (s.kind, '*') AND (r.state = s.was OR (r.state = '*' AND s.was"
    " <> 'dead_letter'))"
)
_NEXT = (
    "SELECT id FROM holdfast_job WHERE id > :after AND (:any OR tenant = :tenant)"
    " AND EXISTS (SELECT 1 FROM holdfast_retention WHERE archive) ORDER BY id LIMIT :look"
)
_UNARCHIVED = (
    f"SELECT s.id, s.tenant, s.finished_at FROM (SELECT *, {_WAS} AS was FROM holdfast_job_state s"
    " WHERE s.id IN (SELECT value FROM json_each(:ids))) s"
    " WHERE s.state IN ('succeeded', 'failed', 'cancelled', 'dead_letter', 'cleaned')"
    f" AND (SELECT r.archive AND s.finished_at <= :now - 1000000 * min(coalesce(r.clean_after, r.purge_after),"
    f" coalesce(r.purge_after, r.clean_after)) FROM holdfast_retention r WHERE {_MATCHES}"
    " ORDER BY r.tenant = '*', r.kind = '*', r.state = '*' LIMIT 1)"
    " AND NOT EXISTS (SELECT 1 FROM holdfast_archived a WHERE a.job_id = s.id"
    " AND (s.state = 'cleaned' OR s.finished_at = a.finished_at)) ORDER BY s.id"
)
_RECORD = (
    "INSERT INTO holdfast_archive (id, tenant, ref, bytes, jobs, first_job, last_job, seal, seal_digest, created_by,"
    " created_at) SELECT :id, :tenant, :ref, :bytes, :jobs, :first, :last, (SELECT max(number) FROM holdfast_seal),"
    " (SELECT digest FROM holdfast_seal ORDER BY number DESC LIMIT 1), :actor, :now"
    " WHERE NOT EXISTS (SELECT 1 FROM holdfast_archive WHERE id = :id) AND EXISTS (SELECT 1 FROM holdfast_job"
    " WHERE tenant = :tenant AND id IN (SELECT value FROM json_each(:ids)))"
)
_MARK = (
    "INSERT INTO holdfast_archived (job_id, tenant, archive_id, finished_at) SELECT s.id, s.tenant, ?, s.finished_at"
    " FROM holdfast_job_state s WHERE s.id = ? AND s.tenant = ? AND s.finished_at = ?"
    " AND EXISTS (SELECT 1 FROM holdfast_archive WHERE id = ? AND ref = ?)"
    " ON CONFLICT DO UPDATE SET archive_id = excluded.archive_id, finished_at = excluded.finished_at"
    " WHERE finished_at <> excluded.finished_at"
)
_MANY = {
    "event": "job_id = :id ORDER BY seq",
    "step": "job_id = :id ORDER BY n",
    "checkpoint": "job_id = :id ORDER BY name",
    "artifact": "job_id = :id ORDER BY attempt, name",
    "attempt_log": "job_id = :id ORDER BY attempt, n",
    "replaced_payload": "job_id = :id ORDER BY attempt",
    "approval": "job_id = :id ORDER BY id",
    "redriven_as": "job_id = :id OR new_id = :id ORDER BY job_id",
    "vote": "approval_id IN (SELECT id FROM holdfast_approval WHERE job_id = :id) ORDER BY approval_id, n",
}
_ONE = {"job": "id = :id", "job_state": "id = :id"}
_ONE |= dict.fromkeys(("result", "reference", "made_from", "node"), "job_id = :id")
_TABLES = _ONE | _MANY


class SqliteArchives(SqlitePart, ArchiveReads):
    @flow(writes=False)
    def walk(self, after: str, look: int = 2000, tenant: str = EVERY_TENANT) -> Steps[Walk]:
        scope = {"any": any_tenant(tenant), "tenant": tenant, "after": after, "look": look}
        ids = [row[0] for row in (yield Statement(_NEXT, scope))]
        ((now,),) = yield Statement("SELECT now FROM holdfast_present")
        rows = yield Statement(_UNARCHIVED, {"ids": ids_json(ids), "now": now})
        jobs = [Finished(id, whose, from_micros(at)) for id, whose, at in rows]
        return Walk(jobs, ids[-1] if ids else after, len(ids) >= look)

    @flow(writes=False)
    def rows(self, jobs: Sequence[str], tenant: str) -> Steps[list[Document]]:
        names: dict[str, list[str]] = {}
        for table in _TABLES:
            names[table] = [
                row[0] for row in (yield Statement("SELECT name FROM pragma_table_info(?)", (f"holdfast_{table}",)))
            ]
        ((now,),) = yield Statement("SELECT now FROM holdfast_present")
        documents: list[Document] = []
        for job_id, whose, _ in (yield Statement(_UNARCHIVED, {"ids": ids_json(jobs), "now": now})):
            if tenant not in (EVERY_TENANT, whose):
                continue
            document: Document = {}
            for table, condition in _TABLES.items():
                rows = yield Statement(f"SELECT * FROM holdfast_{table} WHERE {condition}", {"id": job_id})
                found = [_row(names[table], row) for row in rows]
                document[table] = found if table in _MANY else found[0] if found else None
            documents.append(document)
        return documents

    @flow()
    def record(
        self, archive: str, ref: str, size: int, jobs: Sequence[Finished], actor: str, tenant: str
    ) -> Steps[Archive]:
        now = yield from begin_write(actor)
        params = {"id": archive, "tenant": tenant, "ref": ref, "bytes": size, "jobs": len(jobs), "actor": actor}
        params |= {"first": jobs[0].id, "last": jobs[-1].id, "ids": ids_json(job.id for job in jobs), "now": now}
        yield Statement(_RECORD, params)
        yield Statement("DELETE FROM holdfast_orphaned_file WHERE tenant = ? AND job_id = ?", (tenant, archive))
        marks = [(archive, job.id, tenant, micros(job.finished_at), archive, ref) for job in jobs]
        yield Statement(_MARK, marks, many=True)
        rows = yield Statement(
            f"SELECT {_COLUMNS} FROM holdfast_archive a WHERE a.id = ? AND a.tenant = ?", (archive, tenant)
        )
        yield from end_write()
        return _recorded(Record.decoder(Archive, self.dialect.codec), rows)


def _recorded(decode: Callable[[Row], Archive], rows: Rows) -> Archive:
    if not rows:
        raise NotFound("none of these jobs is in this tenant")
    return decode(rows[0])


def _row(names: Sequence[str], row: Sequence[Any]) -> dict[str, Any]:
    return {name: _value(name, value) for name, value in zip(names, row, strict=True)}


def _value(name: str, value: Any) -> Any:
    """A column as PostgreSQL would write it: times as text, JSON as values."""
    if value is None:
        return None
    if isinstance(value, int) and (name == "at" or name.endswith("_at")):
        return from_micros(value).isoformat()
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, str) and name in Record.documents | Record.lists | {"note"}:
        try:
            return json.loads(value)
        except ValueError:
            return value
    return value
