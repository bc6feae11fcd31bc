"""What people do to jobs: cancel, redrive, discard, reschedule. A refusal is an answer (DP-3)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

from holdfast.engine.job import Verdict
from holdfast.engine.states import ACTIVE, State, state_of
from holdfast.errors import InvalidInput
from holdfast.stores.base import OperatorVerb, Reschedule
from holdfast.stores.codecs import in_micros, micros
from holdfast.stores.flow import Statement, Steps, flow
from holdfast.stores.sqlite.never import NEVER
from holdfast.stores.sqlite.operations.writer import any_tenant, ids_json, sign, unsign

_FIND = (
    "SELECT id, state, retries, due_at FROM job_state"
    " WHERE id IN (SELECT value FROM json_each(:ids)) AND (:any OR tenant = :tenant)"
)
_STOP = (
    "UPDATE job_state SET state = 'cancelled', lease = NULL, due_at = NULL, gate_id = NULL, finished_at = :now,"
    " note = :note WHERE id IN (SELECT value FROM json_each(:ids))"
)
# A redriven job has its full number of tries before it again.
_REDRIVE = (
    "UPDATE job_state SET state = 'queued', due_at = NULL, finished_at = NULL, retries = 0, crashes = 0,"
    " max_retries = coalesce(:limit, max_retries), error_code = NULL, error_message = NULL, note = :note"
    " WHERE id IN (SELECT value FROM json_each(:ids))"
)
# The note is what record_transition looks at: the ledger says who did it, also where the state stays.
_RESCHEDULE = (
    "UPDATE job_state SET state = 'queued', due_at = :due, max_retries = coalesce(:limit, max_retries),"
    " note = json_patch('{}', json_object('rescheduled', CASE WHEN :due IS NULL THEN 'now' ELSE"
    " strftime('%Y-%m-%dT%H:%M:%S', :due / 1000000, 'unixepoch') || printf('.%03dZ', :due / 1000 % 1000) END,"
    " 'by', (SELECT actor FROM present), 'reason', :reason, 'max_retries', :limit))"
    " WHERE id IN (SELECT value FROM json_each(:ids))"
)
_RECALL = (
    "INSERT INTO recall (lease, times) SELECT DISTINCT lease, 1 FROM job_state"
    " WHERE id IN (SELECT value FROM json_each(:ids)) AND lease IS NOT NULL"
    " ON CONFLICT (lease) DO UPDATE SET times = times + 1"
)


class OperatorVerbs:
    @flow(tells=True)
    def operate(
        self,
        verb: OperatorVerb,
        ids: Sequence[str],
        reason: str | None,
        actor: str,
        tenant: str,
        max_retries: int | None = None,
    ) -> Steps[list[Verdict]]:
        _check_limit(max_retries)
        if verb == "discard" and not (reason or "").strip():
            return [Verdict(job_id, None, True, "reason_required") for job_id in ids]
        now = yield from sign(actor)
        verdicts = yield from apply(verb, ids, reason, tenant, now, max_retries)
        yield from unsign()
        if verb == "discard" and any(verdict.refused for verdict in verdicts):
            # What was skipped behind a dead letter of a workflow may have been cancelled with it.
            scope = {"ids": ids_json(ids), "any": any_tenant(tenant), "tenant": tenant}
            now_is = {str(row[0]): state_of(row[1]) for row in (yield Statement(_FIND, scope))}
            verdicts = [replace(each, state=now_is.get(each.id, each.state)) for each in verdicts]
        return verdicts

    @flow(tells=True)
    def reschedule(
        self, ids: Sequence[str], when: Reschedule, reason: str | None, actor: str, tenant: str
    ) -> Steps[list[Verdict]]:
        _check_limit(when.max_retries)
        now = yield from sign(actor)
        scope = {"ids": ids_json(ids), "any": any_tenant(tenant), "tenant": tenant}
        found = {row[0]: (state_of(row[1]), int(row[2]), row[3]) for row in (yield Statement(_FIND, scope))}
        refusals = {job_id: _reason_against(*waits, when) for job_id, waits in found.items()}
        due = micros(when.at) if when.at is not None else now + in_micros(when.delay or 0.0)
        params = {
            "ids": ids_json(job_id for job_id, refusal in refusals.items() if refusal is None),
            "due": due if due > now else None,
            "limit": when.max_retries,
            "reason": reason or None,
        }
        yield Statement(_RESCHEDULE, params)
        yield from unsign()
        answers = []
        for job_id in ids:
            refusal = refusals[job_id] if job_id in found else "not_found"
            was = found[job_id][0] if job_id in found else None
            answers.append(Verdict(job_id, State.QUEUED if refusal is None else was, refusal is not None, refusal))
        return answers


def apply(
    verb: OperatorVerb,
    ids: Sequence[str],
    reason: str | None,
    tenant: str,
    now: int,
    max_retries: int | None = None,
    operation: str | None = None,
) -> Steps[list[Verdict]]:
    """Inside a flow that has signed; ``operation`` is the bulk operation that it is part of."""
    scope = {"ids": ids_json(ids), "any": any_tenant(tenant), "tenant": tenant}
    found = {str(row[0]): state_of(row[1]) for row in (yield Statement(_FIND, scope))}
    open_to = ACTIVE if verb == "cancel" else {State.DEAD_LETTER}
    willing = [job_id for job_id, state in found.items() if state in open_to]
    said = {"reason": reason or None, "max_retries": max_retries, "operation": operation}
    note = {name: value for name, value in said.items() if value is not None}
    params = {"ids": ids_json(willing), "note": json.dumps(note) if note else None}
    if verb == "cancel":  # whoever runs them is told that they are no longer theirs
        yield Statement(_RECALL, {"ids": ids_json(willing)})
    if verb == "redrive":
        yield Statement(_REDRIVE, {**params, "limit": max_retries})
    else:
        yield Statement(_STOP, {**params, "now": now})
    done = set(willing)
    return [_verdict(verb, job_id, found.get(job_id), job_id in done) for job_id in ids]


def _reason_against(state: State, retries: int, due_at: int | None, when: Reschedule) -> str | None:
    if state not in (State.QUEUED, State.RETRY_WAITING):
        return "not_waiting"
    if due_at == NEVER:
        return "job_held"
    return "limit_too_low" if when.max_retries is not None and retries > when.max_retries else None


def _check_limit(max_retries: int | None) -> None:
    if max_retries is not None and not 0 <= max_retries <= 100:
        raise InvalidInput(f"max_retries is from 0 to 100, not {max_retries}")


def _verdict(verb: OperatorVerb, job_id: str, was: State | None, done: bool) -> Verdict:
    if was is None:
        return Verdict(job_id, None, True, "not_found")
    if not done:
        return Verdict(job_id, was, True, "already_finished" if verb == "cancel" else "not_dead")
    return Verdict(job_id, State.QUEUED if verb == "redrive" else State.CANCELLED, False, None)
