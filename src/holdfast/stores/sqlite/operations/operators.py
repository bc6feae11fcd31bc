"""What people do to jobs: cancel, redrive, discard. A refusal is an answer (DP-3)."""

from __future__ import annotations

import json
from collections.abc import Sequence

from holdfast.domain.job import Verdict
from holdfast.domain.states import ACTIVE, State
from holdfast.stores.base import OperatorVerb
from holdfast.stores.flow import Statement, Steps, flow
from holdfast.stores.sqlite.operations.writer import any_tenant, ids_json, sign, unsign

_FIND = "SELECT id, state FROM job_state WHERE id IN (SELECT value FROM json_each(:ids)) AND (:any OR tenant = :tenant)"
_STOP = (
    "UPDATE job_state SET state = 'cancelled', lease = NULL, due_at = NULL, gate_id = NULL, finished_at = :now,"
    " note = :note WHERE id IN (SELECT value FROM json_each(:ids))"
)
# A redriven job has its full number of tries before it again.
_REDRIVE = (
    "UPDATE job_state SET state = 'queued', due_at = NULL, finished_at = NULL, retries = 0, crashes = 0,"
    " error_code = NULL, error_message = NULL, note = :note WHERE id IN (SELECT value FROM json_each(:ids))"
)
_RECALL = (
    "INSERT INTO recall (lease, times) SELECT DISTINCT lease, 1 FROM job_state"
    " WHERE id IN (SELECT value FROM json_each(:ids)) AND lease IS NOT NULL"
    " ON CONFLICT (lease) DO UPDATE SET times = times + 1"
)


class OperatorVerbs:
    @flow(tells=True)
    def operate(
        self, verb: OperatorVerb, ids: Sequence[str], reason: str | None, actor: str, tenant: str
    ) -> Steps[list[Verdict]]:
        if verb == "discard" and not (reason or "").strip():
            return [Verdict(job_id, None, True, "reason_required") for job_id in ids]
        now = yield from sign(actor)
        scope = {"ids": ids_json(ids), "any": any_tenant(tenant), "tenant": tenant}
        found: dict[str, State] = {row[0]: State(row[1]) for row in (yield Statement(_FIND, scope))}
        open_to = ACTIVE if verb == "cancel" else {State.DEAD_LETTER}
        willing = [job_id for job_id, state in found.items() if state in open_to]
        note = json.dumps({"reason": reason}) if reason else None
        statement = _REDRIVE if verb == "redrive" else _STOP
        params = {"ids": ids_json(willing), "note": note}
        if verb == "cancel":  # whoever runs them is told that they are no longer theirs
            yield Statement(_RECALL, {"ids": ids_json(willing)})
        yield Statement(statement, params if verb == "redrive" else {**params, "now": now})
        yield from unsign()
        return [_verdict(verb, job_id, found.get(job_id), job_id in set(willing)) for job_id in ids]


def _verdict(verb: OperatorVerb, job_id: str, was: State | None, done: bool) -> Verdict:
    if was is None:
        return Verdict(job_id, None, True, "not_found")
    if not done:
        return Verdict(job_id, was, True, "already_finished" if verb == "cancel" else "not_dead")
    return Verdict(job_id, State.QUEUED if verb == "redrive" else State.CANCELLED, False, None)
