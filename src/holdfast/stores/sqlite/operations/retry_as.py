"""Retry as a new job (SC-6): the failed job stays failed, and a successor is enqueued in the same transaction."""

from __future__ import annotations

import json
import os
import time

from holdfast.engine.ids import IdMaker
from holdfast.stores.flow import Statement, Steps

_new_id = IdMaker(lambda: time.time_ns() // 1_000_000, os.urandom)

_NOTE = (
    "UPDATE job_state SET retries = retries + :retried, crashes = min(crashes, 32766) + :lost, note = :note"
    " WHERE id = :old AND state = 'failed'"
)
SAME = (
    "tenant, kind, payload, deadline_at, max_crashes, backoff, idempotency_key, content_key, tags, agent,"
    " correlation_id, causation_id, parent_id, workflow_id, external_ref, source_system, uses, retry_as, depth"
)
# What was counted is carried over by the trigger that makes its state.
_SUCCEED = (
    f"INSERT INTO job (id, {SAME}, queue, priority, max_retries, process_after, enqueued_by, created_at, retry_of)"
    f" SELECT :new, j.{SAME.replace(', ', ', j.')}, s.queue, s.priority, s.max_retries, :due, 'retry of ' || j.id,"
    " :now, j.id FROM job j JOIN job_state s ON s.n = j.n WHERE j.id = :old"
)
_REFERENCE = (
    "INSERT INTO reference (job_id, tenant, source_ref, target_ref, payload_ref)"
    " SELECT :new, tenant, source_ref, target_ref, payload_ref FROM reference WHERE job_id = :old"
)
# Whoever enqueues under its key, or the same again, comes to the job that stands for it now.
_KEY = (
    "UPDATE idempotency SET job_id = :new WHERE job_id = :old AND (tenant, kind, key) ="
    " (SELECT tenant, kind, idempotency_key FROM job WHERE id = :old)"
)
_CONTENT = (
    "UPDATE content SET job_id = :new WHERE job_id = :old AND (tenant, key) ="
    " (SELECT tenant, content_key FROM job WHERE id = :old)"
)
IN_PLACE = (_KEY, _CONTENT)


def retry_anew(job_id: str, now: int, due: int | None, *, retried: int = 0, lost: int = 0) -> Steps[None]:
    """Inside a flow that has signed and has just ended the job's attempt as failed. What is counted here has not been
    counted yet: a retry, or a lost worker. That a job has one successor is a key, and the trigger's business."""
    new = _new_id()
    names = {"old": job_id, "new": new}
    note = json.dumps({"retried_as": new})
    yield Statement(_NOTE, {"old": job_id, "retried": retried, "lost": lost, "note": note})
    yield Statement(_SUCCEED, names | {"now": now, "due": due if due is not None and due > now else None})
    yield Statement(_REFERENCE, names)
    for statement in IN_PLACE:
        yield Statement(statement, names)
