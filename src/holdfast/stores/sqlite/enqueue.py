"""Enqueue: idempotency and content keys, checks, inserts; retry of a job as a new job."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Sequence
from dataclasses import astuple

from holdfast.engine.job import Enqueued, JobSpec
from holdfast.engine.payload import canonical, decode
from holdfast.engine.states import ACTIVE, State, state_of
from holdfast.features.agents.model import agent_refusal, with_agent_settings
from holdfast.stores.codecs import from_micros
from holdfast.stores.flow import Statement, Steps
from holdfast.stores.requests import new_id
from holdfast.stores.sqlite.base import end_write, sign_enqueue
from holdfast.stores.sqlite.codec import insert_jobs, insert_plain
from holdfast.stores.sqlite.insert_checks import agents_of, check_cap, check_payloads, is_ruled, refuse_paused
from holdfast.stores.sqlite.registry_checks import refuse_unregistered

_ADD_KEY = (
    "INSERT INTO holdfast_idempotency (tenant, kind, key, job_id, payload_hash) VALUES (?, ?, ?, ?, ?)"
    " ON CONFLICT DO NOTHING RETURNING 1"
)
_OF_KEY = (
    "SELECT i.job_id, i.payload_hash, s.state FROM holdfast_idempotency i LEFT JOIN holdfast_job_state s ON s.id ="
    " i.job_id WHERE i.tenant = ? AND i.kind = ? AND i.key = ?"
)
_OF_CONTENT = (
    "SELECT c.job_id, s.state, s.attempt FROM holdfast_content c LEFT JOIN holdfast_job_state s ON s.id = c.job_id"
    " WHERE c.tenant = ? AND c.key = ?"
)
_SET_CONTENT = (
    "INSERT INTO holdfast_content (tenant, key, job_id) VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET job_id ="
    " excluded.job_id"
)
_PUT_KEY = (
    "INSERT INTO holdfast_idempotency (tenant, kind, key, job_id, payload_hash) VALUES (?, ?, ?, ?, ?)"
    " ON CONFLICT DO UPDATE SET job_id = excluded.job_id"
)
_ADD_REFERENCE = (
    "INSERT INTO holdfast_reference (job_id, tenant, source_ref, target_ref, payload_ref) VALUES (?, ?, ?, ?, ?)"
)
_PARENT = "SELECT id, correlation_id, workflow_id, depth FROM holdfast_job WHERE id = ? AND tenant = ?"


def enqueue(specs: Sequence[JobSpec], tenant: str) -> Steps[list[Enqueued]]:
    """Enqueue a batch. One plain job is one statement where there are no rules: the triggers for hand-written inserts
    do the same at once, and the clock row is not written."""
    if len(specs) == 1 and (plain := insert_plain(specs[0], tenant)) is not None and (yield plain):
        return [Enqueued(specs[0].id, True)]
    now, ruled = yield from sign_enqueue()
    results = yield from add(specs, tenant, now, ruled)
    yield from end_write()
    return results


def add(specs: Sequence[JobSpec], tenant: str, now: int, ruled: bool | None = None) -> Steps[list[Enqueued]]:
    """Enqueue within a signed write; new jobs get their state at ``unsign``. ``ruled``: whether there are rules to
    check (pauses, payload rules, registries); None reads it."""
    results: list[Enqueued] = []
    new: list[JobSpec] = []
    agents = (yield from agents_of(specs, tenant)) if any(spec.agent is not None for spec in specs) else {}
    for spec in specs:
        if spec.parent_id is not None:
            child = yield from _inherit(spec, tenant)
            if child is None:
                results.append(Enqueued(None, False, "parent_not_found", None))
                continue
            spec = child
        agent = agents.get(spec.agent) if spec.agent is not None else None
        refused = None if agent is None else agent_refusal(agent, spec.kind, len(spec.payload.encode()))
        keyed = spec.key is not None or spec.content_key is not None
        # A duplicate returns the existing job even if its agent would refuse a new one.
        duplicate = (yield from _duplicate(spec, tenant, refused is not None)) if keyed else None
        if duplicate is not None:
            results.append(duplicate)
        elif refused is not None:
            results.append(Enqueued(None, False, refused.reason, None, refused.detail))
        else:
            new.append(spec if agent is None else with_agent_settings(agent, spec, from_micros(now)))
            results.append(Enqueued(spec.id, True))
    if new:
        if ruled or (ruled is None and (yield from is_ruled())):
            yield from refuse_unregistered(new, tenant, now)
            yield from refuse_paused(new, tenant, now)
            yield from check_payloads(new, tenant)
        yield from check_cap(new, tenant, now)
        yield insert_jobs(new, tenant, now)
        references = [(spec.id, tenant, *astuple(spec.references)) for spec in new if spec.references is not None]
        if references:
            yield Statement(_ADD_REFERENCE, references, many=True)
    return results


def _inherit(spec: JobSpec, tenant: str) -> Steps[JobSpec | None]:
    """A child inherits correlation, workflow and depth from its parent, unless it has its own."""
    rows = yield Statement(_PARENT, (spec.parent_id, tenant))
    if not rows:
        return None
    parent, correlation, workflow, depth = rows[0]
    return dataclasses.replace(
        spec,
        correlation_id=spec.correlation_id or correlation or parent,
        workflow_id=spec.workflow_id or workflow,
        depth=spec.depth or depth,
    )


def _duplicate(spec: JobSpec, tenant: str, refused: bool) -> Steps[Enqueued | None]:
    """The existing job with the same key or content, if there is one. A job that will be refused does not take the
    key."""
    fingerprint = ""
    if spec.key is not None:
        fingerprint = spec.payload_hash or hashlib.sha256(canonical(decode(spec.payload)).encode()).hexdigest()
        added = [] if refused else (yield Statement(_ADD_KEY, (tenant, spec.kind, spec.key, spec.id, fingerprint)))
        rows = [] if added else (yield Statement(_OF_KEY, (tenant, spec.kind, spec.key)))
        if rows:
            job_id, payload_hash, state = rows[0]
            reason = "duplicate_key" if payload_hash == fingerprint else "idempotency_conflict"
            return Enqueued(job_id, False, reason, _state(state))
    if spec.content_key is not None:
        rows = yield Statement(_OF_CONTENT, (tenant, spec.content_key))
        if rows and _counts(rows[0][1], rows[0][2], waiting_only=spec.dedupe == "coalesce"):
            job_id, state = rows[0][0], rows[0][1]
            if spec.key is not None:
                yield Statement(_PUT_KEY, (tenant, spec.kind, spec.key, job_id, fingerprint))
            return Enqueued(job_id, False, "duplicate_content", _state(state))
        if not refused:
            yield Statement(_SET_CONTENT, (tenant, spec.content_key, spec.id))
    return None


def _counts(state: str | None, attempt: int | None, *, waiting_only: bool) -> bool:
    """Whether a job with the same content is a duplicate in its state."""
    if state is None:  # an earlier job of the same batch
        return True
    if waiting_only:
        return state == State.QUEUED and attempt == 0
    return state in ACTIVE


def _state(value: str | None) -> State:
    return state_of(value) if value else State.QUEUED


_NOTE = (
    "UPDATE holdfast_job_state SET retries = retries + :retried, crashes = min(crashes, 32766) + :lost, note = :note"
    " WHERE id = :old AND state = 'failed'"
)
SAME = (
    "tenant, kind, payload, deadline_at, max_crashes, backoff, idempotency_key, content_key, tags, agent,"
    " correlation_id, causation_id, parent_id, workflow_id, external_ref, source_system, uses, retry_as, depth,"
    " executor"
)
# The trigger that creates the state of the new job copies the counters.
_SUCCEED = (
    f"INSERT INTO holdfast_job (id, {SAME}, queue, priority, max_attempts, run_at, enqueued_by, created_at, retry_of)"
    f" SELECT :new, j.{SAME.replace(', ', ', j.')}, s.queue, s.priority, s.max_attempts, :due, 'retry of ' || j.id,"
    " :now, j.id FROM holdfast_job j JOIN holdfast_job_state s ON s.n = j.n WHERE j.id = :old"
)
_REFERENCE = (
    "INSERT INTO holdfast_reference (job_id, tenant, source_ref, target_ref, payload_ref)"
    " SELECT :new, tenant, source_ref, target_ref, payload_ref FROM holdfast_reference WHERE job_id = :old"
)
# The keys of the old job now lead to the new one.
_KEY = (
    "UPDATE holdfast_idempotency SET job_id = :new WHERE job_id = :old AND (tenant, kind, key) ="
    " (SELECT tenant, kind, idempotency_key FROM holdfast_job WHERE id = :old)"
)
_CONTENT = (
    "UPDATE holdfast_content SET job_id = :new WHERE job_id = :old AND (tenant, key) ="
    " (SELECT tenant, content_key FROM holdfast_job WHERE id = :old)"
)
IN_PLACE = (_KEY, _CONTENT)


def retry_as_new(job_id: str, now: int, due: int | None, *, retried: int = 0, lost: int = 0) -> Steps[None]:
    """Create the job that retries a failed one, within a signed write that has just ended the attempt as failed.
    ``retried`` and ``lost`` add to the counters of retries and crashes. A unique key and a trigger ensure that a job
    has only one successor."""
    new = new_id()
    names = {"old": job_id, "new": new}
    note = json.dumps({"retried_as": new})
    yield Statement(_NOTE, {"old": job_id, "retried": retried, "lost": lost, "note": note})
    yield Statement(_SUCCEED, names | {"now": now, "due": due if due is not None and due > now else None})
    yield Statement(_REFERENCE, names)
    for statement in IN_PLACE:
        yield Statement(statement, names)
