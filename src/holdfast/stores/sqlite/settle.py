"""Settle: end attempts, each guarded by its id, attempt and lease; the rest was decided before."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from holdfast.engine.settlement import Settlement
from holdfast.stores.codecs import in_micros
from holdfast.stores.flow import Statement, Steps
from holdfast.stores.sqlite.base import ids_json
from holdfast.stores.sqlite.enqueue import retry_anew
from holdfast.stores.sqlite.steps import due, suspend

# The plus signs keep the index of leases out of it: it would read all jobs of the lease again for each of them.
_SUCCEED = (
    "UPDATE job_state SET state = 'succeeded', lease = NULL, settled_by = :lease, finished_at = :now,"
    " error_code = NULL, error_message = NULL, due_at = NULL, note = NULL"
    " WHERE id IN (SELECT value FROM json_each(:ids)) AND attempt = :attempt"
    " AND +lease = :lease AND +state = 'in_progress' RETURNING id"
)
_END = (
    "UPDATE job_state SET state = :state, lease = NULL, settled_by = :lease, finished_at = :finished, due_at = :due,"
    " error_code = :code, error_message = :message, note = :note, approval_id = :approval,"
    " crashes = min(crashes, 32766) + :crashed"
    " WHERE id = :id AND attempt = :attempt AND +lease = :lease AND +state = 'in_progress'"
    " RETURNING CASE WHEN crashes <= max_crashes THEN (SELECT j.retry_as FROM job j WHERE j.n = job_state.n) END"
)
_PASS_ON = (
    "UPDATE job_state SET state = :state, retries = retries + :retried, due_at = :due, finished_at = :finished,"
    " note = :group WHERE id = :id"
)
# The crash has been counted by then. Whether another try is left is the row's to say, as for the reaper.
_AFTER_CRASH = (
    "UPDATE job_state SET state = CASE WHEN crashes <= max_crashes THEN 'retry_waiting' ELSE 'dead_letter' END,"
    " due_at = CASE WHEN crashes <= max_crashes THEN :due END,"
    " finished_at = CASE WHEN crashes <= max_crashes THEN NULL ELSE :now END,"
    " note = CASE WHEN crashes <= max_crashes THEN NULL ELSE :group END WHERE id = :id"
)
_RESULT = (
    "INSERT INTO result (job_id, tenant, value, ref) SELECT id, tenant, ?, ? FROM job_state WHERE id = ?"
    " ON CONFLICT (job_id) DO NOTHING"  # a job succeeds once; what was put there before is found by `audit verify`
)

ADVANCE = Statement("INSERT INTO round (id) SELECT 1 WHERE EXISTS (SELECT 1 FROM moved WHERE job_id > '')")


def end_attempts(lease: str, settlements: Sequence[Settlement], now: int) -> Steps[list[str]]:
    """The settling itself, inside a flow that has signed; answers the ids that were no longer this lease's."""
    # Of several settlements of one attempt the first one counts.
    offered: dict[tuple[str, int], Settlement] = {}
    for item in settlements:
        offered.setdefault((item.id, item.attempt), item)
    applied: set[tuple[str, int]] = set()
    # By attempt, of which a batch has few: a list of ids is looked up faster than a list of pairs.
    successes: dict[int, list[str]] = {}
    for (job_id, attempt), item in offered.items():
        if _plain(item):
            successes.setdefault(attempt, []).append(job_id)
    for attempt, ids in successes.items():
        params = {"ids": ids_json(ids), "attempt": attempt, "lease": lease, "now": now}
        rows = yield Statement(_SUCCEED, params)
        applied.update((row[0], attempt) for row in rows)
    if len(applied) < len(settlements):
        for key, item in offered.items():
            if not _plain(item):
                rows = yield Statement(_END, _ending(item, lease, now))
                if rows:
                    applied.add(key)
                    # `failed` passes on at once, in the same transaction; or a new job takes over from it.
                    if item.ending in ("retry", "crash") and rows[0][0] is not None:
                        yield from retry_anew(item.id, now, _due(item, now), retried=int(item.ending == "retry"))
                    elif item.ending in ("retry", "bury"):
                        yield Statement(_PASS_ON, _passing_on(item, now))
                    elif item.pause is not None:
                        yield from suspend(item, now)
                    elif item.ending == "crash":
                        params = {"id": item.id, "now": now, "due": _due(item, now), "group": _group(item)}
                        yield Statement(_AFTER_CRASH, params)
    results = [
        (item.result, item.ref, item.id)
        for key in applied
        if (item := offered[key]).result is not None or item.ref is not None
    ]
    if results:
        yield Statement(_RESULT, results, many=True)
    # Before anything is claimed in the same turn: what waited for these may be.
    yield ADVANCE
    if len(applied) == len(settlements):
        return []
    done = {job_id for job_id, _ in applied}
    return list(dict.fromkeys(item.id for item in settlements if item.id not in done))


def _plain(item: Settlement) -> bool:
    """A success with nothing to be noted: many of them are one statement."""
    return item.ending == "succeeded" and item.note is None


_WAITING = {"snooze": "retry_waiting", "pause": "retry_waiting", "ask": "waiting_for_approval"}
_ENDED = {"cancel": "cancelled", "succeeded": "succeeded"}


def _again(item: Settlement, now: int) -> int | None:
    """When a job that waits is to go on by itself."""
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


def _passing_on(item: Settlement, now: int) -> dict[str, Any]:
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
    """A dead letter knows its group (``features/dead_letters/sqlite.sql``)."""
    told = {name: item.note[name] for name in ("fingerprint", "frame") if name in item.note} if item.note else {}
    return json.dumps(told) if told else None
