"""Settle: end attempts, each guarded by its id, attempt and lease. The settlement already contains every decision."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from holdfast.engine.settlement import Settlement
from holdfast.stores.codecs import in_micros
from holdfast.stores.flow import Statement, Steps
from holdfast.stores.sqlite.base import ids_json
from holdfast.stores.sqlite.enqueue import retry_as_new
from holdfast.stores.sqlite.requirements import HOLD
from holdfast.stores.sqlite.steps import due, suspend

# The plus signs exclude the index on leases, which would read all jobs of the lease for each id.
_SUCCEED = (
    "UPDATE holdfast_job_state SET state = 'succeeded', lease = NULL, settled_by = :lease, finished_at = :now,"
    " error_code = NULL, error_message = NULL, due_at = NULL, note = NULL"
    " WHERE id IN (SELECT value FROM json_each(:ids)) AND attempt = :attempt"
    " AND +lease = :lease AND +state = 'in_progress'"
)
# Without RETURNING, which costs about 2 % of a job (docs/adr/0025). Usually the whole batch is settled: the number of
# changed rows shows it. Otherwise the ledger shows which jobs were.
_LAST_EVENT = Statement("SELECT coalesce(max(seq), 0) FROM holdfast_event")
_CHANGED = Statement("SELECT changes()")
_SUCCEEDED_SINCE = (
    "SELECT job_id FROM holdfast_event WHERE seq > :since AND type = 'succeed' AND attempt = :attempt"
    " AND job_id IN (SELECT value FROM json_each(:ids))"
)
_END = (
    "UPDATE holdfast_job_state SET state = :state, lease = NULL, settled_by = :lease, finished_at = :finished, due_at"
    " = :due, error_code = :code, error_message = :message, note = :note, approval_id = :approval,"
    " crashes = min(crashes, 32766) + :crashed"
    " WHERE id = :id AND attempt = :attempt AND +lease = :lease AND +state = 'in_progress'"
    " RETURNING CASE WHEN crashes <= max_crashes THEN (SELECT j.retry_as FROM holdfast_job j WHERE j.n ="
    " holdfast_job_state.n) END"
)
_AFTER_FAILURE = (
    "UPDATE holdfast_job_state SET state = :state, retries = retries + :retried, due_at = :due, finished_at ="
    " :finished, note = :group WHERE id = :id"
)
# The crash is already counted. The row decides whether another attempt is left, as in recovery.
_AFTER_CRASH = (
    "UPDATE holdfast_job_state SET state = CASE WHEN crashes <= max_crashes THEN 'retry_waiting' ELSE 'dead_letter'"
    " END, due_at = CASE WHEN crashes <= max_crashes THEN :due END,"
    " finished_at = CASE WHEN crashes <= max_crashes THEN NULL ELSE :now END,"
    " note = CASE WHEN crashes <= max_crashes THEN NULL ELSE :group END WHERE id = :id"
)
_RESULT = (
    "INSERT INTO holdfast_result (job_id, tenant, value, ref) SELECT id, tenant, ?, ? FROM holdfast_job_state WHERE"
    " id = ? ON CONFLICT (job_id) DO NOTHING"  # a job succeeds once; `audit verify` finds what was there before
)

ADVANCE = Statement(
    "INSERT INTO holdfast_round (id) SELECT 1 WHERE EXISTS (SELECT 1 FROM holdfast_moved WHERE job_id > '')"
)


def end_attempts(lease: str, settlements: Sequence[Settlement], now: int) -> Steps[list[str]]:
    """Apply settlements within a signed write; returns the ids that the lease no longer held."""
    # Of several settlements of one attempt the first one counts.
    first: dict[tuple[str, int], Settlement] = {}
    for item in settlements:
        first.setdefault((item.id, item.attempt), item)
    applied: set[tuple[str, int]] = set()
    # Grouped by attempt number, of which a batch has few: matching ids is faster than matching pairs.
    successes: dict[int, list[str]] = {}
    for (job_id, attempt), item in first.items():
        if _plain(item):
            successes.setdefault(attempt, []).append(job_id)
    for attempt, ids in successes.items():
        params = {"ids": ids_json(ids), "attempt": attempt, "lease": lease, "now": now}
        [(last_event,)] = yield _LAST_EVENT
        yield Statement(_SUCCEED, params)
        [(changed,)] = yield _CHANGED
        if changed < len(ids):
            found = {"ids": params["ids"], "attempt": attempt, "since": last_event}
            ids = [row[0] for row in (yield Statement(_SUCCEEDED_SINCE, found))]
        applied.update((job_id, attempt) for job_id in ids)
    if len(applied) < len(settlements):
        for key, item in first.items():
            if not _plain(item):
                rows = yield Statement(_END, _ending(item, lease, now))
                if rows:
                    applied.add(key)
                    # A failed job changes to its next state in the same transaction, or a new job replaces it.
                    if item.ending in ("retry", "crash") and rows[0][0] is not None:
                        yield from retry_as_new(item.id, now, _due(item, now), retried=int(item.ending == "retry"))
                    elif item.ending in ("retry", "dead_letter"):
                        yield Statement(_AFTER_FAILURE, _failure_params(item, now))
                    elif item.pause is not None:
                        yield from suspend(item, now)
                    elif item.ending == "snooze" and "mismatch" in (item.note or {}):
                        yield Statement(HOLD, {"id": item.id})
                    elif item.ending == "crash":
                        params = {"id": item.id, "now": now, "due": _due(item, now), "group": _group(item)}
                        yield Statement(_AFTER_CRASH, params)
    results = [
        (item.result, item.ref, item.id)
        for key in applied
        if (item := first[key]).result is not None or item.ref is not None
    ]
    if results:
        yield Statement(_RESULT, results, many=True)
    # Before the claim of the same exchange: jobs that waited for these can then be claimed.
    yield ADVANCE
    if len(applied) == len(settlements):
        return []
    done = {job_id for job_id, _ in applied}
    return list(dict.fromkeys(item.id for item in settlements if item.id not in done))


def _plain(item: Settlement) -> bool:
    """Whether it is a success without a note: all of these are settled by one statement."""
    return item.ending == "succeeded" and item.note is None


_WAITING = {"snooze": "retry_waiting", "pause": "retry_waiting", "ask": "waiting_for_approval"}
_ENDED = {"cancel": "cancelled", "succeeded": "succeeded"}


def _again(item: Settlement, now: int) -> int | None:
    """When a snoozed or paused job is due again."""
    if item.ending == "pause":
        return due(item.pause or {}, now)
    return _due(item, now) if item.ending == "snooze" else None


def _due(item: Settlement, now: int) -> int:
    return now + in_micros(item.delay)


def _ending(item: Settlement, lease: str, now: int) -> dict[str, Any]:
    waits = item.ending in _WAITING
    return {
        "id": item.id,
        "attempt": item.attempt,
        "lease": lease,
        "state": _WAITING.get(item.ending) or _ENDED.get(item.ending, "failed"),
        "finished": None if waits else now,
        "due": _again(item, now),
        "approval": item.pause["approval"]["id"] if item.ending == "ask" and item.pause else None,
        "code": item.code,
        "message": item.message,
        "note": None if item.note is None else json.dumps(item.note),
        "crashed": int(item.ending == "crash"),
    }


def _failure_params(item: Settlement, now: int) -> dict[str, Any]:
    again = item.ending == "retry"
    return {
        "id": item.id,
        "state": "retry_waiting" if again else "dead_letter",
        "retried": int(again),
        "due": _due(item, now) if again else None,
        "finished": None if again else now,
        "group": None if again else _group(item),
    }


def _group(item: Settlement) -> str | None:
    """The part of the note that names the group of a dead letter (``features/dead_letters/sqlite.sql``)."""
    group = {name: item.note[name] for name in ("fingerprint", "frame") if name in item.note} if item.note else {}
    return json.dumps(group) if group else None
