"""A job's circumstances, its chain of retries, and who may execute."""

from __future__ import annotations

import json

from holdfast.engine.ids import parse_id
from holdfast.engine.job import Job
from holdfast.features.agents.model import AHEAD, Circumstances, Executor, WorkerSeen
from holdfast.features.health.statistics import MOST_WORKERS, WorkerPulse
from holdfast.stores.codecs import Record, from_micros
from holdfast.stores.flow import Row, Statement, Steps, flow
from holdfast.stores.reads import Reads
from holdfast.stores.reads.jobs import JOB_COLUMNS
from holdfast.stores.sqlite.codec import SqliteCodec
from holdfast.stores.sqlite.operations.writer import any_tenant, sign, unsign

_LONGEST = 500
_AROUND = (
    "SELECT p.now, s.note, l.holder, l.name, l.until, l.ended_at IS NULL AND l.until > p.now, s.lease, s.state,"
    " s.due_at, s.queue, s.priority, s.position FROM present p, job_state s LEFT JOIN lease l ON l.id = s.lease"
    " WHERE s.id = :job AND (:any OR s.tenant = :tenant)"
)
_CLAIMABLE = "s.queue = :queue AND s.state = 'queued' AND s.due_at IS NULL"
_AHEAD = (
    "SELECT count(*) FROM (SELECT 1 FROM job_state s INDEXED BY claimable"
    f" WHERE {_CLAIMABLE} AND s.priority > :priority"
    f" UNION ALL SELECT 1 FROM job_state s INDEXED BY claimable"
    f" WHERE {_CLAIMABLE} AND s.priority = :priority AND s.position < :position LIMIT :most)"
)
_WORKERS = (
    "SELECT l.name, l.holder, l.tenant, l.kinds, l.queues, l.slots, (SELECT count(*) FROM job_state s"
    " WHERE s.lease = l.id AND s.state IN ('leased', 'in_progress')) FROM lease l"
    " WHERE l.ended_at IS NULL AND l.until > :now AND (:any OR l.tenant = :tenant OR l.tenant = '*')"
    " AND (l.kinds IS NOT NULL OR l.queues IS NOT NULL) ORDER BY l.until DESC LIMIT 200"
)
_STANDINGS = (
    "SELECT l.name, l.holder, l.tenant, l.kinds, l.queues, l.slots, (SELECT count(*) FROM job_state s"
    " WHERE s.lease = l.id AND s.state IN ('leased', 'in_progress')), l.opened_at, l.renewed_at, l.until"
    " FROM lease l, present p WHERE l.ended_at IS NULL AND l.until > p.now"
    " AND (:any OR l.tenant = :tenant OR l.tenant = '*') ORDER BY l.renewed_at DESC LIMIT :most"
)
# Back to the first try and on to the last: one of a kind, so each step is one look at a key.
_CHAIN = (
    "WITH RECURSIVE back(id, n) AS (SELECT :job, 0 UNION ALL SELECT j.retry_of, b.n - 1 FROM back b JOIN job j"
    f" ON j.id = b.id WHERE j.retry_of IS NOT NULL AND b.n > -{_LONGEST}),"
    " forth(id, n) AS (SELECT :job, 0 UNION ALL SELECT j.id, f.n + 1 FROM forth f JOIN job j ON j.retry_of = f.id"
    f" WHERE j.retry_of IS NOT NULL AND f.n < {_LONGEST}),"
    " tries(id, n) AS (SELECT id, n FROM back UNION SELECT id, n FROM forth)"
    f" SELECT {JOB_COLUMNS} FROM tries t CROSS JOIN jobs j ON j.id = t.id WHERE :any OR j.tenant = :tenant ORDER BY t.n"
)
_EXECUTORS = f"SELECT {Record.columns(Executor)} FROM executor"
_ADD = (
    "INSERT INTO executor (label, role, added_by, added_at) VALUES (?, ?, ?, ?) ON CONFLICT (label) DO UPDATE"
    " SET role = excluded.role, added_by = excluded.added_by, added_at = excluded.added_at WHERE role <> excluded.role"
)


class CircumstanceVerbs(Reads):
    @flow(writes=False)
    def chain(self, job_id: str, tenant: str) -> Steps[list[Job]]:
        scope = {"job": parse_id(job_id), "any": any_tenant(tenant), "tenant": tenant}
        rows = yield Statement(_CHAIN, scope)
        return [self._job(row) for row in rows]

    @flow(writes=False)
    def circumstances(self, job_id: str, tenant: str) -> Steps[Circumstances | None]:
        scope = {"any": any_tenant(tenant), "tenant": tenant}
        rows = yield Statement(_AROUND, {"job": parse_id(job_id)} | scope)
        if not rows:
            return None
        now, note, holder, label, until, held, lease, state, due, queue, priority, position = rows[0]
        ahead = None
        if state == "queued" and due is None:
            place = {"queue": queue, "priority": priority, "position": position, "most": AHEAD}
            ahead = (yield Statement(_AHEAD, place))[0][0]
        workers = yield Statement(_WORKERS, {"now": now} | scope)
        return Circumstances(
            from_micros(now),
            {} if note is None else json.loads(note),
            holder,
            label,
            None if until is None else from_micros(until),
            None if lease is None else bool(held),
            ahead,
            tuple(_seen(row) for row in workers),
        )

    def _workers(self, tenant: str) -> Steps[list[WorkerPulse]]:
        scope = {"any": any_tenant(tenant), "tenant": tenant, "most": MOST_WORKERS}
        rows = yield Statement(_STANDINGS, scope)
        decode = Record.decoder(WorkerPulse, SqliteCodec())
        return [decode(row) for row in rows]

    @flow()
    def add_executor(self, label: str, role: str, actor: str) -> Steps[Executor]:
        now = yield from sign(actor)
        yield Statement(_ADD, (label, role, actor, now))
        rows = yield Statement(f"{_EXECUTORS} WHERE label = ?", (label,))
        yield from unsign()
        return Record.decoder(Executor, SqliteCodec())(rows[0])

    @flow()
    def remove_executor(self, label: str, actor: str | None = None) -> Steps[bool]:
        yield from sign(actor)
        rows = yield Statement("DELETE FROM executor WHERE label = ? RETURNING 1", (label,))
        yield from unsign()
        return bool(rows)

    @flow(writes=False)
    def executors(self) -> Steps[list[Executor]]:
        rows = yield Statement(f"{_EXECUTORS} WHERE label > '' ORDER BY label")
        decode = Record.decoder(Executor, SqliteCodec())
        return [decode(row) for row in rows]


def _seen(row: Row) -> WorkerSeen:
    label, holder, tenant, kinds, queues, slots, busy = row
    known, served = (None if names is None else tuple(json.loads(names)) for names in (kinds, queues))
    return WorkerSeen(label, holder, tenant, known, served, slots, busy)
