"""What people write about dead letters, and redriving one with another payload (DP-15). Triggers do the counting."""

from __future__ import annotations

import json

from holdfast.engine.ids import parse_id
from holdfast.engine.job import Enqueued
from holdfast.engine.states import State
from holdfast.stores.flow import Statement, Steps, flow
from holdfast.stores.sqlite.base import any_tenant, sign, unsign
from holdfast.stores.sqlite.enqueue import IN_PLACE, SAME

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
    f"INSERT INTO job (id, payload, {_KEPT}, queue, priority, max_retries, enqueued_by, created_at)"
    f" SELECT :new, :payload, j.{_KEPT.replace(', ', ', j.')}, s.queue, s.priority, s.max_retries, :actor, :now"
    " FROM job j JOIN job_state s ON s.n = j.n WHERE j.id = :old"
)
_LINK = "INSERT INTO redriven_as (job_id, tenant, new_id, by, at) VALUES (:old, :tenant, :new, :actor, :now)"


class DeadLetterVerbs:
    @flow()
    def note_dead_letters(self, fingerprint: str, note: str | None, actor: str, tenant: str) -> Steps[bool]:
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
