"""Calls with one key that become one job (engine/collapse.py), within a signed write."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

from holdfast.engine.collapse import SUPERSEDED, Collapse
from holdfast.engine.job import Enqueued, JobSpec
from holdfast.engine.states import state_of
from holdfast.stores.codecs import from_micros, in_micros
from holdfast.stores.flow import Statement, Steps

# A newer call supersedes a job that waits to start or to be retried. One with recorded steps is half done.
_OF_KEY = (
    "SELECT c.job_id, c.since, s.state, s.due_at, s.state IS NULL OR s.state IN ('queued', 'retry_waiting')"
    " AND NOT EXISTS (SELECT 1 FROM holdfast_step t WHERE t.job_id = s.id)"
    " FROM holdfast_content c LEFT JOIN holdfast_job_state s ON s.id = c.job_id WHERE c.tenant = ? AND c.key = ?"
)
_SET = (
    "INSERT INTO holdfast_content (tenant, key, job_id, since) VALUES (:tenant, :content, :id, :since)"
    " ON CONFLICT DO UPDATE SET job_id = excluded.job_id, since = excluded.since"
)
_SET_KEY = (
    "INSERT INTO holdfast_idempotency (tenant, kind, key, job_id, payload_hash)"
    " VALUES (:tenant, :kind, :key, :id, :hash)"
    " ON CONFLICT DO UPDATE SET job_id = excluded.job_id, payload_hash = excluded.payload_hash"
)
_CANCEL = (
    "UPDATE holdfast_job_state SET state = 'cancelled', lease = NULL, due_at = NULL, finished_at = :now, note = :note"
    " WHERE id = :old"
)
_SIGN_AS = "UPDATE holdfast_clock SET actor = ?"
_DELAY = (
    "UPDATE holdfast_job_state SET due_at = :due, note = json_object('rescheduled',"
    " strftime('%Y-%m-%dT%H:%M:%S', :due / 1000000, 'unixepoch') || printf('.%03dZ', :due / 1000 % 1000),"
    " 'by', (SELECT actor FROM holdfast_present), 'reason', 'debounced') WHERE id = :old"
)


def collapse(
    spec: JobSpec, how: Collapse, tenant: str, now: int, fingerprint: str, batch: list[JobSpec], old: dict[str, str]
) -> Steps[Enqueued | None]:
    """Join a call with earlier ones. Returns the existing job; or None, after the new one was added to ``batch``, the
    jobs that are not stored yet, and the one that it supersedes to ``old``, with its content key."""
    rows = yield Statement(_OF_KEY, (tenant, spec.content_key))
    earlier, since, state, due_at, waits = rows[0] if rows else (None, None, None, None, False)
    wait = in_micros(how.wait)
    if how.mode == "throttle":
        if since is not None and since + wait > now:
            return Enqueued(earlier, False, "throttled", state_of(state or "queued"))
        since, waits = now, False
    elif not waits or since is None:
        since = now
    due = None
    if how.mode == "debounce":
        due = now + wait if how.longest is None else min(now + wait, since + in_micros(how.longest))
        if waits and how.first:
            if state == "queued" and due_at is not None and due_at < due:
                yield Statement(_DELAY, {"old": earlier, "due": due})
            return Enqueued(earlier, False, "debounced", state_of(state or "queued"))
        spec = replace(spec, run_at=from_micros(due))
    names = {"tenant": tenant, "content": spec.content_key, "id": spec.id, "since": since}
    yield Statement(_SET, names)
    yield Statement(_SET_KEY, {**names, "kind": spec.kind, "key": spec.key, "hash": fingerprint})
    if waits and state is None:
        batch[:] = [other for other in batch if other.id != earlier]
    elif waits:
        old[str(earlier)] = spec.content_key or ""
    batch.append(spec)
    return None


def supersede(
    specs: Sequence[JobSpec], results: list[Enqueued], batch: Sequence[JobSpec], old: dict[str, str], now: int
) -> Steps[list[Enqueued]]:
    """Cancel the superseded jobs. Returns the results of the batch, where a later call may have superseded an earlier
    one."""
    newest = {spec.content_key: spec for spec in batch if spec.collapse is not None}
    stored = {key: spec.id for key, spec in newest.items()}
    for job_id, key in old.items():
        note = json.dumps({"reason": SUPERSEDED, "superseded_by": stored[key]})
        yield Statement(_SIGN_AS, (newest[key].enqueued_by,))
        yield Statement(_CANCEL, {"old": job_id, "now": now, "note": note})
    if old:
        yield Statement(_SIGN_AS, (None,))
    return [
        Enqueued(stored[spec.content_key], False, result.reason or SUPERSEDED)
        if spec.collapse is not None and stored.get(spec.content_key, result.id) != result.id and result.id is not None
        else result
        for spec, result in zip(specs, results, strict=True)
    ]
