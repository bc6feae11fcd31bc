"""Dead letters and bulk operations on SQLite."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence

from holdfast.engine.ids import parse_id
from holdfast.engine.job import EVERY_TENANT, Enqueued
from holdfast.engine.states import State
from holdfast.features.dead_letters.model import COUNTED, Operation, Starting
from holdfast.features.dead_letters.store import DeadLetterReads, Operating, as_wanted, for_action
from holdfast.stores.codecs import Record, in_micros
from holdfast.stores.flow import Statement, Steps, flow
from holdfast.stores.requests import JobFilter
from holdfast.stores.sqlite.admission import halted
from holdfast.stores.sqlite.base import SqlitePart, any_tenant, sign, unsign
from holdfast.stores.sqlite.enqueue import IN_PLACE, SAME
from holdfast.stores.sqlite.jobs import apply

_NOTE = (
    "UPDATE dead_letter_group SET note = :note, noted_by = CASE WHEN :note IS NOT NULL THEN :actor END,"
    " noted_at = CASE WHEN :note IS NOT NULL THEN :now END WHERE tenant = :tenant AND fingerprint = :name RETURNING 1"
)
_FIND = (
    "SELECT s.state, j.workflow_id, j.tenant, (SELECT r.new_id FROM redriven_as r WHERE r.job_id = s.id)"
    " FROM job_state s JOIN job j ON j.n = s.n WHERE s.id = :old AND (:any OR s.tenant = :tenant)"
)
_GIVE_UP = "UPDATE job_state SET state = 'cancelled', finished_at = :now, note = :note WHERE id = :old"
_KEPT = SAME.replace("payload, ", "")
_REMAKE = (
    f"INSERT INTO job (id, payload, {_KEPT}, queue, priority, max_attempts, enqueued_by, created_at)"
    f" SELECT :new, :payload, j.{_KEPT.replace(', ', ', j.')}, s.queue, s.priority, s.max_attempts, :actor, :now"
    " FROM job j JOIN job_state s ON s.n = j.n WHERE j.id = :old"
)
_LINK = "INSERT INTO redriven_as (job_id, tenant, new_id, by, at) VALUES (:old, :tenant, :new, :actor, :now)"


class SqliteDeadLetters(SqlitePart, DeadLetterReads):
    @flow()
    def note(self, fingerprint: str, note: str | None, actor: str, tenant: str) -> Steps[bool]:
        now = yield from sign(actor)
        params = {"note": note or None, "actor": actor, "now": now, "tenant": tenant, "name": fingerprint}
        rows = yield Statement(_NOTE, params)
        yield from unsign()
        return bool(rows)

    @flow(tells=True)
    def redrive_as(
        self, job_id: str, new_id: str, payload: str, reason: str | None, actor: str, tenant: str
    ) -> Steps[Enqueued]:
        old = parse_id(job_id)
        rows = yield Statement(_FIND, {"old": old, "any": any_tenant(tenant), "tenant": tenant})
        state, workflow, whose, made = rows[0] if rows else (None, None, tenant, None)
        if made is not None:
            return Enqueued(made, False)
        refusal = "not_found" if state is None else "not_dead" if state != State.DEAD_LETTER else None
        if refusal is None and workflow is not None:  # others wait for that very job
            refusal = "in_workflow"
        if refusal is not None:
            return Enqueued(None, False, refusal)
        now = yield from sign(actor)
        why = f"redriven as {new_id}" + (f": {reason}" if reason else "")
        names = {"old": old, "new": new_id}
        yield Statement(_GIVE_UP, {"old": old, "now": now, "note": json.dumps({"reason": why})})
        yield Statement(_REMAKE, names | {"payload": payload, "actor": actor, "now": now})
        for statement in IN_PLACE:
            yield Statement(statement, names)
        yield Statement(_LINK, names | {"tenant": whose, "actor": actor, "now": now})
        yield from unsign()
        return Enqueued(new_id, True)


_START = (
    "INSERT INTO operation (id, tenant, action, wanted, reason, max_attempts, rate, total, capped, next_at, created_by,"
    " created_at, updated_at) VALUES (:id, :tenant, :action, :wanted, :reason, :limit, :rate, :total, :capped, :now,"
    " :actor, :now, :now)"
)
_OWN = "state = 'running' AND (:any OR tenant = :tenant)"
_NEXT = f"SELECT min(next_at), (SELECT now FROM present) FROM operation INDEXED BY operation_running WHERE {_OWN}"
_HOLD = (
    f"SELECT {Record.columns(Operation)} FROM operation WHERE {_OWN} AND next_at <= :now"
    " AND (:only IS NULL OR id = :only) ORDER BY next_at LIMIT 1"
)
_ADVANCE = (
    "UPDATE operation SET done = done + :done, refused = refused + :refused, refusals = :refusals,"
    " place = coalesce(:last, place), next_at = :next, updated_at = :now,"
    " state = CASE WHEN :over THEN 'done' ELSE 'running' END, finished_at = CASE WHEN :over THEN :now END"
    " WHERE id = :id"
)
_CANCEL = (
    "UPDATE operation SET state = 'cancelled', finished_at = :now, updated_at = :now, cancelled_by = :actor,"
    f" cancelled_reason = :reason WHERE id = :id AND {_OWN} RETURNING 1"
)


class SqliteOperations(SqlitePart, Operating):
    @flow()
    def start(self, new: Starting, wanted: JobFilter, actor: str, tenant: str) -> Steps[Operation]:
        chosen = for_action(new.action, wanted)
        total = yield from self._count(chosen)
        now = yield from sign(actor)
        facts = {"id": new.id, "tenant": tenant, "action": new.action, "wanted": as_wanted(chosen)}
        how = {"reason": new.reason or None, "limit": new.max_attempts, "rate": new.rate, "actor": actor, "now": now}
        yield Statement(_START, facts | how | {"total": min(total, COUNTED), "capped": int(total > COUNTED)})
        yield from unsign()
        started = yield from self.get(new.id, tenant).start()
        assert started is not None
        return started

    @flow(writes=False)
    def next(self, tenant: str = EVERY_TENANT) -> Steps[float | None]:
        ((due, now),) = yield Statement(_NEXT, {"any": any_tenant(tenant), "tenant": tenant})
        if due is None or (yield from halted()):
            return None
        return max(0.0, float(due - now) / 1_000_000)

    @flow(tells=True)
    def work(self, tenant: str = EVERY_TENANT, only: str | None = None) -> Steps[int | None]:
        return (yield from self._work(tenant, only))

    @flow()
    def cancel(self, operation_id: str, reason: str | None, actor: str, tenant: str) -> Steps[bool]:
        now = yield from sign(actor)
        whose = {"id": parse_id(operation_id), "any": any_tenant(tenant), "tenant": tenant}
        rows = yield Statement(_CANCEL, whose | {"now": now, "actor": actor, "reason": reason or None})
        yield from unsign()
        return bool(rows)

    # --- what working on one asks for ---

    def _hold_operation(self, only: str | None, tenant: str) -> Steps[Operation | None]:
        """There is one writer at a time, so to have the write lock is to have it."""
        ((now,),) = yield Statement("SELECT now FROM present")
        whose = {"any": any_tenant(tenant), "tenant": tenant}
        rows = yield Statement(_HOLD, whose | {"now": now, "only": only})
        return self._operation(rows[0]) if rows else None

    def _do_operation(self, found: Operation, jobs: Sequence[str], last: str | None, over: bool) -> Steps[None]:
        now = yield from sign(found.created_by)
        verdicts = yield from apply(found.action, jobs, found.reason, found.tenant, now, found.max_attempts, found.id)
        no = Counter(verdict.reason or "refused" for verdict in verdicts if verdict.refused)
        pause = 0 if found.rate is None else in_micros(len(jobs) / found.rate)
        progress = {
            "id": found.id,
            "done": len(jobs) - no.total(),
            "refused": no.total(),
            "refusals": json.dumps(dict(Counter(found.refusals) + no)),
            "last": last,
            "next": now + pause,
            "over": int(over),
            "now": now,
        }
        yield Statement(_ADVANCE, progress)
        yield from unsign()
