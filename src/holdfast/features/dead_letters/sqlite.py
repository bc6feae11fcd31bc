"""Dead letters and bulk operations on SQLite."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from typing import Any

from holdfast.engine.ids import parse_id
from holdfast.engine.job import EVERY_TENANT, Enqueued
from holdfast.engine.states import State
from holdfast.features.dead_letters.model import COUNTED, NewOperation, Operation
from holdfast.features.dead_letters.store import DeadLetterReads, OperationBatches, filter_json, for_action
from holdfast.stores.codecs import Record, in_micros, micros
from holdfast.stores.flow import Statement, Steps, flow
from holdfast.stores.requests import JobFilter
from holdfast.stores.sqlite.admission import halted
from holdfast.stores.sqlite.base import SqlitePart, any_tenant, begin_write, end_write, write
from holdfast.stores.sqlite.enqueue import IN_PLACE, SAME
from holdfast.stores.sqlite.jobs import apply, reschedule

_NOTE = (
    "UPDATE holdfast_dead_letter_group SET note = :note, noted_by = CASE WHEN :note IS NOT NULL THEN :actor END,"
    " noted_at = CASE WHEN :note IS NOT NULL THEN :now END WHERE tenant = :tenant AND fingerprint = :name RETURNING 1"
)
_FIND = (
    "SELECT s.state, j.workflow_id, j.tenant, (SELECT r.new_id FROM holdfast_redriven_as r WHERE r.job_id = s.id)"
    " FROM holdfast_job_state s JOIN holdfast_job j ON j.n = s.n WHERE s.id = :old AND (:any OR s.tenant = :tenant)"
)
_DISCARD = "UPDATE holdfast_job_state SET state = 'cancelled', finished_at = :now, note = :note WHERE id = :old"
_COPIED = SAME.replace("payload, ", "")
_REPLACE = (
    f"INSERT INTO holdfast_job (id, payload, {_COPIED}, queue, priority, max_attempts, enqueued_by, created_at)"
    f" SELECT :new, :payload, j.{_COPIED.replace(', ', ', j.')}, s.queue, s.priority, s.max_attempts, :actor, :now"
    " FROM holdfast_job j JOIN holdfast_job_state s ON s.n = j.n WHERE j.id = :old"
)
_LINK = "INSERT INTO holdfast_redriven_as (job_id, tenant, new_id, by, at) VALUES (:old, :tenant, :new, :actor, :now)"


class SqliteDeadLetters(SqlitePart, DeadLetterReads):
    @flow()
    def note(self, fingerprint: str, note: str | None, actor: str, tenant: str) -> Steps[bool]:
        return bool((yield from write(actor, _NOTE, note=note or None, tenant=tenant, name=fingerprint)))

    @flow(notifies=True)
    def redrive_as(
        self, job_id: str, new_id: str, payload: str, reason: str | None, actor: str, tenant: str
    ) -> Steps[Enqueued]:
        old = parse_id(job_id)
        rows = yield Statement(_FIND, {"old": old, "any": any_tenant(tenant), "tenant": tenant})
        state, workflow, job_tenant, replacement = rows[0] if rows else (None, None, tenant, None)
        if replacement is not None:
            return Enqueued(replacement, False)
        refusal = "not_found" if state is None else "not_dead" if state != State.DEAD_LETTER else None
        if refusal is None and workflow is not None:  # other jobs depend on this job
            refusal = "in_workflow"
        if refusal is not None:
            return Enqueued(None, False, refusal)
        now = yield from begin_write(actor)
        note = f"redriven as {new_id}" + (f": {reason}" if reason else "")
        job_ids = {"old": old, "new": new_id}
        yield Statement(_DISCARD, {"old": old, "now": now, "note": json.dumps({"reason": note})})
        yield Statement(_REPLACE, job_ids | {"payload": payload, "actor": actor, "now": now})
        for statement in IN_PLACE:
            yield Statement(statement, job_ids)
        yield Statement(_LINK, job_ids | {"tenant": job_tenant, "actor": actor, "now": now})
        yield from end_write()
        return Enqueued(new_id, True)


_START = (
    "INSERT INTO holdfast_operation (id, tenant, action, wanted, reason, max_attempts, rate, total, capped, next_at,"
    " created_by, created_at, updated_at, run_at) VALUES (:id, :tenant, :action, :wanted, :reason, :limit, :rate,"
    " :total, :capped, :now, :actor, :now, :now, :run_at)"
)
_OWN = "state = 'running' AND (:any OR tenant = :tenant)"
# Now if the last batch was in the future, because the clock was set back.
_BATCH_DUE = (
    "CASE WHEN updated_at > (SELECT now FROM holdfast_present) + 5000000 THEN (SELECT now FROM holdfast_present) ELSE"
    " next_at END"
)
_NEXT = (
    f"SELECT min({_BATCH_DUE}), (SELECT now FROM holdfast_present) FROM holdfast_operation INDEXED BY"
    f" holdfast_operation_running WHERE {_OWN}"
)
_HOLD = (
    f"SELECT {Record.columns(Operation)} FROM holdfast_operation WHERE {_OWN} AND {_BATCH_DUE} <= :now"
    " AND (:only IS NULL OR id = :only) ORDER BY next_at LIMIT 1"
)
_ADVANCE = (
    "UPDATE holdfast_operation SET done = done + :done, refused = refused + :refused, refusals = :refusals,"
    " place = coalesce(:last, place), next_at = :next, updated_at = :now,"
    " state = CASE WHEN :over THEN 'done' ELSE 'running' END, finished_at = CASE WHEN :over THEN :now END"
    " WHERE id = :id"
)
_CANCEL = (
    "UPDATE holdfast_operation SET state = 'cancelled', finished_at = :now, updated_at = :now, cancelled_by = :actor,"
    f" cancelled_reason = :reason WHERE id = :id AND {_OWN} RETURNING 1"
)


class SqliteOperations(SqlitePart, OperationBatches):
    @flow()
    def start(self, new: NewOperation, wanted: JobFilter, actor: str, tenant: str) -> Steps[Operation]:
        wanted = for_action(new.action, wanted)
        total = yield from self._count(wanted)
        now = yield from begin_write(actor)
        params: dict[str, Any] = {"id": new.id, "tenant": tenant, "action": new.action, "wanted": filter_json(wanted)}
        params |= {"reason": new.reason or None, "limit": new.max_attempts, "rate": new.rate, "actor": actor}
        params |= {"total": min(total, COUNTED), "capped": int(total > COUNTED), "now": now}
        params["run_at"] = micros(new.at) if new.at else None if new.delay is None else now + in_micros(new.delay)
        yield Statement(_START, params)
        yield from end_write()
        started = yield from self.get(new.id, tenant).start()
        assert started is not None
        return started

    @flow(writes=False)
    def next(self, tenant: str = EVERY_TENANT) -> Steps[float | None]:
        ((due, now),) = yield Statement(_NEXT, {"any": any_tenant(tenant), "tenant": tenant})
        if due is None or (yield from halted()):
            return None
        return max(0.0, float(due - now) / 1_000_000)

    @flow(notifies=True)
    def work(self, tenant: str = EVERY_TENANT, only: str | None = None) -> Steps[int | None]:
        return (yield from self._work(tenant, only))

    @flow()
    def cancel(self, operation_id: str, reason: str | None, actor: str, tenant: str) -> Steps[bool]:
        scope = {"id": parse_id(operation_id), "any": any_tenant(tenant), "tenant": tenant}
        return bool((yield from write(actor, _CANCEL, reason=reason or None, **scope)))

    def _hold_operation(self, only: str | None, tenant: str) -> Steps[Operation | None]:
        """There is one writer at a time: the write lock holds the operation."""
        ((now,),) = yield Statement("SELECT now FROM holdfast_present")
        params = {"any": any_tenant(tenant), "tenant": tenant, "now": now, "only": only}
        rows = yield Statement(_HOLD, params)
        return self._operation(rows[0]) if rows else None

    def _do_operation(self, operation: Operation, jobs: Sequence[str], last: str | None, over: bool) -> Steps[None]:
        now = yield from begin_write(operation.created_by)
        verdicts = yield from apply(
            operation.action, jobs, operation.reason, operation.tenant, now, operation.max_attempts, operation.id
        )
        if operation.run_at is not None and micros(operation.run_at) > now:
            done = [verdict.id for verdict in verdicts if not verdict.refused]
            yield from reschedule(done, micros(operation.run_at), None, operation.reason, now)
        refusals = Counter(verdict.reason or "refused" for verdict in verdicts if verdict.refused)
        pause = 0 if operation.rate is None else in_micros(len(jobs) / operation.rate)
        progress = {
            "id": operation.id,
            "done": len(jobs) - refusals.total(),
            "refused": refusals.total(),
            "refusals": json.dumps(dict(Counter(operation.refusals) + refusals)),
            "last": last,
            "next": now + pause,
            "over": int(over),
            "now": now,
        }
        yield Statement(_ADVANCE, progress)
        yield from end_write()
