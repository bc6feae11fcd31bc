"""``store.steps`` on SQLite: save finished steps, checkpoints and artifacts; suspend a job that waits for an event, a
time or an approval."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from holdfast.engine.ids import parse_id
from holdfast.engine.payload import MARK, canonical, decode_for_display
from holdfast.engine.settlement import Settlement
from holdfast.engine.steps import Saved, StepEntry, projection
from holdfast.errors import StoreError
from holdfast.stores.codecs import from_micros, in_micros, micros
from holdfast.stores.flow import Statement, Steps, flow
from holdfast.stores.job_reads import StepReads
from holdfast.stores.sqlite.base import SqlitePart, act_under, any_tenant, begin_write, end_write, note_action

_HELD = (
    "SELECT id, attempt FROM holdfast_job_state"
    " WHERE id IN (SELECT value FROM json_each(?)) AND +lease = ? AND +state = 'in_progress'"
)
# A trigger refuses an insert that conflicts with a finished step (it could be a REPLACE), so the insert excludes them.
_IS_FINISHED = "EXISTS (SELECT 1 FROM holdfast_step o WHERE o.job_id = :job AND o.n = :n AND o.ended_at IS NOT NULL)"
_SAVE = (
    "INSERT INTO holdfast_step (job_id, n, tenant, name, kind, value, error, tries, attempt, started_at, ended_at)"
    " SELECT id, ?2, tenant, ?3, ?4, ?5, ?6, ?7, attempt, ?9 - ?8, ?9 FROM holdfast_job_state WHERE id = ?1"
    " AND NOT EXISTS (SELECT 1 FROM holdfast_step o WHERE o.job_id = ?1 AND o.n = ?2 AND o.ended_at IS NOT NULL)"
    " ON CONFLICT (job_id, n) DO UPDATE SET value = excluded.value, error = excluded.error, tries = excluded.tries,"
    " attempt = excluded.attempt, ended_at = excluded.ended_at WHERE ended_at IS NULL"
)
_FINISHED = (
    "SELECT t.job_id, t.n, t.value FROM json_each(?) o JOIN holdfast_step t"
    " ON t.job_id = json_extract(o.value, '$[0]') AND t.n = json_extract(o.value, '$[1]') WHERE t.ended_at IS NOT NULL"
)
_PAUSE = (
    "INSERT INTO holdfast_step (job_id, n, tenant, name, kind, error, tries, attempt, started_at, wake_at, shape,"
    " wanted) SELECT id, :n, tenant, :name, :kind, :error, :tries, attempt, :now, due_at, :shape, :wanted"
    f" FROM holdfast_job_state WHERE id = :job AND NOT {_IS_FINISHED}"
    " ON CONFLICT (job_id, n) DO UPDATE SET error = excluded.error, tries = excluded.tries,"
    " attempt = excluded.attempt, wake_at = excluded.wake_at, shape = excluded.shape, wanted = excluded.wanted"
    " WHERE ended_at IS NULL"
)
FULFIL = "UPDATE holdfast_step SET value = :value, ended_at = :now WHERE job_id = :job AND n = :n AND ended_at IS NULL"
_WAITING = (
    "SELECT j.tenant, j.created_at, t.ended_at FROM holdfast_job j JOIN holdfast_step t ON t.job_id = j.id WHERE j.id"
    " = ? AND t.n = ?"
)
_RECEIVED = (
    "SELECT json_extract(value, '$.id') FROM holdfast_step WHERE job_id = ? AND kind = 'event' AND value IS NOT NULL"
)
_SENT = (
    "SELECT id, data, sent_by, sent_at FROM holdfast_app_event WHERE tenant = :tenant AND name = :name AND sent_at >="
    " :since AND (job_id IS NULL OR job_id = :job) ORDER BY sent_at, id"
)
_RESUME = (
    "UPDATE holdfast_job_state SET state = 'queued', due_at = NULL, note = :note WHERE id = :job AND state ="
    " 'retry_waiting'"
)
WAKE = f"{_RESUME} AND due_at = (SELECT wake_at FROM holdfast_step WHERE job_id = :job AND n = :n) RETURNING 1"
_IS_DEAD = "SELECT 1 FROM holdfast_job_state WHERE id = :job AND state = 'dead_letter' AND (:any OR tenant = :tenant)"
_FORGET = "DELETE FROM holdfast_step WHERE job_id = ? AND n >= ? RETURNING 1"
_FORKED = (
    "SELECT j.tenant FROM holdfast_job j JOIN holdfast_job o ON o.id = :old AND o.tenant = j.tenant AND o.kind = j.kind"
    " JOIN holdfast_job_state s ON s.n = j.n AND s.attempt = 0 WHERE j.id = :new AND (:any OR j.tenant = :tenant)"
    " AND NOT EXISTS (SELECT 1 FROM holdfast_step t WHERE t.job_id = j.id)"
    " AND EXISTS (SELECT 1 FROM json_each(j.tags) t WHERE t.value = 'fork:' || o.id)"
)
# Approvals are not copied: a decision is valid for the job it was given for.
_FORK = (
    "INSERT INTO holdfast_step (job_id, n, tenant, name, kind, value, error, tries, attempt, started_at, wake_at,"
    " ended_at, shape, wanted) SELECT :new, o.n, o.tenant, o.name, o.kind, coalesce(json_extract(p.value, '$.value'),"
    " o.value), o.error, o.tries, 0, o.started_at, o.wake_at, o.ended_at, o.shape, o.wanted FROM holdfast_step o"
    " LEFT JOIN json_each(:parts) p ON json_extract(p.value, '$.n') = o.n"
    " WHERE o.job_id = :old AND o.n < :before AND o.ended_at IS NOT NULL AND o.kind <> 'approval'"
    " AND (p.value IS NOT NULL OR o.value IS NULL OR o.value NOT LIKE '{\"$holdfast\":%') RETURNING 1"
)
_HELD_ATTEMPT = "id = :id AND lease = :lease AND attempt = :attempt AND state = 'in_progress'"
_CHECKPOINT = (
    "INSERT INTO holdfast_checkpoint (job_id, tenant, name, value, attempt, saved_at)"
    f" SELECT id, tenant, :name, :value, attempt, :now FROM holdfast_job_state WHERE {_HELD_ATTEMPT}"
    " ON CONFLICT (job_id, name) DO UPDATE"
    " SET value = excluded.value, attempt = excluded.attempt, saved_at = excluded.saved_at,"
    " saves = CASE WHEN attempt = excluded.attempt THEN saves + 1 ELSE 1 END RETURNING 1"
)
_UPLOAD = (
    "INSERT INTO holdfast_orphaned_file (tenant, ref, job_id, at, again_at)"
    f" SELECT tenant, :ref, id, :now, :now + 86400000000 FROM holdfast_job_state WHERE {_HELD_ATTEMPT}"
    " ON CONFLICT DO NOTHING"
)
# A recorded value refers to the object, which must no longer be deleted.
_UPLOADED = (
    "DELETE FROM holdfast_orphaned_file WHERE job_id = ?1 AND ref = json_extract(?2, '$.\"$holdfast\".stored')"
    " AND tenant = (SELECT tenant FROM holdfast_job_state WHERE id = ?1)"
)
_IS_HELD = f"SELECT 1 FROM holdfast_job_state WHERE {_HELD_ATTEMPT}"
_ADD_ARTIFACT = (
    "INSERT INTO holdfast_artifact (job_id, tenant, attempt, name, ref, meta, at)"
    " SELECT id, tenant, attempt, :name, :ref, :meta, :now FROM holdfast_job_state"
    " WHERE id = :id AND attempt = :attempt AND :lease IN (lease, settled_by) RETURNING 1"
)


class SqliteSteps(SqlitePart, StepReads):
    @flow()
    def save(self, lease: str, entries: Sequence[tuple[str, int, StepEntry]], tenant: str) -> Steps[list[Saved]]:
        now = yield from act_under(lease, tenant)
        ids = json.dumps(sorted({job_id for job_id, _, _ in entries}))
        held = {(row[0], row[1]) for row in (yield Statement(_HELD, (ids, lease)))}
        numbers = json.dumps([(job_id, entry.n) for job_id, _, entry in entries])
        finished = {(row[0], row[1]): row[2] for row in (yield Statement(_FINISHED, (numbers,)))}
        results, rows = [], []
        for job_id, attempt, entry in entries:
            if (job_id, attempt) not in held:
                results.append(Saved(job_id, entry.n, "stale"))
            elif (job_id, entry.n) in finished:
                value = finished[job_id, entry.n]
                results.append(Saved(job_id, entry.n, "kept", value and decode_for_display(value)))
            else:
                rows.append(_row(job_id, entry, now))
        if rows:
            yield Statement(_SAVE, rows, many=True)
            if stored := [(row[0], row[4]) for row in rows if row[4] is not None and row[4].startswith(MARK)]:
                yield Statement(_UPLOADED, stored, many=True)
        yield from end_write()
        return results

    @flow()
    def rewind(self, job_id: str, to: int, actor: str, tenant: str) -> Steps[int | None]:
        yield from begin_write(actor)
        scope = {"job": parse_id(job_id), "any": any_tenant(tenant), "tenant": tenant}
        dead = yield Statement(_IS_DEAD, scope)
        deleted = (yield Statement(_FORGET, (parse_id(job_id), to))) if dead else []
        yield from end_write()
        return len(deleted) if dead else None

    @flow()
    def fork(
        self,
        job_id: str,
        new_id: str,
        before: int,
        step: str,
        parts: Mapping[int, str],
        reason: str | None,
        actor: str,
        tenant: str,
    ) -> Steps[int]:
        old, new = parse_id(job_id), parse_id(new_id)
        rows = yield Statement(_FORKED, {"old": old, "new": new, "any": any_tenant(tenant), "tenant": tenant})
        if not rows:
            raise StoreError(f"job {new} is not a new fork of job {old}")
        yield from begin_write(actor)
        document = json.dumps([{"n": n, "value": value} for n, value in parts.items()])
        copied = yield Statement(_FORK, {"old": old, "new": new, "before": before, "parts": document})
        changed = {"new_id": new, "from_step": step, "n": before, "steps": len(copied), "reason": reason or None}
        known = {name: value for name, value in changed.items() if value is not None}
        yield from note_action(rows[0][0], "fork", "job", old, json.dumps(known))
        yield from end_write()
        return len(copied)

    @flow()
    def save_checkpoint(
        self, claim_id: str, lease: str, attempt: int, name: str, value: str, tenant: str
    ) -> Steps[bool]:
        now = yield from act_under(lease, tenant)
        params = {"id": claim_id, "lease": lease, "attempt": attempt, "name": name, "value": value, "now": now}
        rows = yield Statement(_CHECKPOINT, params)
        if rows and value.startswith(MARK):
            yield Statement(_UPLOADED, [(claim_id, value)], many=True)
        yield from end_write()
        return bool(rows)

    @flow()
    def note_upload(self, claim_id: str, lease: str, attempt: int, ref: str, tenant: str) -> Steps[bool]:
        now = yield from act_under(lease, tenant)
        params = {"id": claim_id, "lease": lease, "attempt": attempt, "ref": ref, "now": now}
        held = yield Statement(_IS_HELD, params)
        if held:
            yield Statement(_UPLOAD, params)
        yield from end_write()
        return bool(held)

    @flow()
    def add_artifact(
        self,
        claim_id: str,
        lease: str,
        attempt: int,
        name: str,
        ref: str,
        tenant: str,
        meta: dict[str, Any] | None = None,
    ) -> Steps[bool]:
        now = yield from act_under(lease, tenant)
        document = None if meta is None else json.dumps(meta)
        params = {"id": claim_id, "lease": lease, "attempt": attempt, "name": name, "ref": ref, "meta": document}
        rows = yield Statement(_ADD_ARTIFACT, params | {"now": now})
        yield from end_write()
        return bool(rows)


def suspend(item: Settlement, now: int) -> Steps[None]:
    """Record what a job waits for, within a signed write that has just ended the attempt."""
    for entry in item.steps or ():
        yield Statement(_SAVE, _row(item.id, StepEntry(**entry), now))
    pause = item.pause or {}
    wanted = pause.get("wanted")
    params = {
        "job": item.id,
        "n": pause["n"],
        "name": pause["name"],
        "kind": pause["kind"],
        "error": None if pause.get("error") is None else json.dumps(pause["error"]),
        "tries": pause.get("tries", 1),
        "now": now,
        "shape": None if wanted is None else json.dumps(sorted(wanted)),
        "wanted": None if wanted is None else canonical(wanted),
    }
    yield Statement(_PAUSE, params)
    if wanted is not None:
        yield from _check_past_events(item.id, pause, now)
    if pause.get("approval") is not None:
        yield from open_approval(item.id, pause, now)


def _check_past_events(job_id: str, pause: dict[str, Any], now: int) -> Steps[None]:
    """Resume the job if the event was sent before the wait began. Events that the job has already received do not
    count."""
    ((tenant, created, ended),) = yield Statement(_WAITING, (job_id, pause["n"]))
    if ended is None:
        since = created - in_micros(pause.get("since", 0.0))
        value = yield from _matching_event(job_id, pause, tenant, since)
        if value is None:
            return
        yield Statement(FULFIL, {"value": value, "now": now, "job": job_id, "n": pause["n"]})
    # A step that has ended received its event after the handler had read its steps: the job must not wait for it.
    yield Statement(_RESUME, {"job": job_id, "note": json.dumps({"event": pause["name"]})})


def _matching_event(job_id: str, pause: dict[str, Any], tenant: str, since: int) -> Steps[str | None]:
    """The value of a step for the first event that matches."""
    wanted = canonical(pause["wanted"])
    received = {row[0] for row in (yield Statement(_RECEIVED, (job_id,)))}
    events = yield Statement(_SENT, {"tenant": tenant, "name": pause["name"], "since": since, "job": job_id})
    for event_id, data, sent_by, sent_at in events:
        if (
            event_id not in received
            and canonical(projection(decode_for_display(data), list(pause["wanted"]))) == wanted
        ):
            return event_value(event_id, pause["name"], data, sent_by, sent_at)
    return None


def due(pause: dict[str, Any], now: int) -> int:
    """When a pause ends."""
    return micros(datetime.fromisoformat(pause["until"])) if "until" in pause else now + in_micros(pause["delay"])


def _row(job_id: str, entry: StepEntry, now: int) -> tuple[Any, ...]:
    """The parameters of ``_SAVE``."""
    error, took = None if entry.error is None else json.dumps(entry.error), in_micros(entry.took)
    return job_id, entry.n, entry.name, entry.kind, entry.value, error, entry.tries, took, now


def event_value(event_id: str, name: str, data: str, sent_by: str, sent_at: int) -> str:
    """The value of a step that has received an event, as JSON text."""
    at = from_micros(sent_at).isoformat(timespec="microseconds").replace("+00:00", "Z")
    value = json.dumps({"id": event_id, "name": name, "sent_by": sent_by, "sent_at": at})
    return f'{value[:-1]},"data":{data}}}'


_TOKEN_ONLY = (
    "(:token_only OR EXISTS (SELECT 1 FROM holdfast_payload_rule r WHERE r.token_only"
    " AND (r.tenant = holdfast_job.tenant OR r.tenant = '*') AND (r.kind = holdfast_job.kind OR r.kind = '*')))"
)
_OPEN_APPROVAL = (
    "INSERT INTO holdfast_approval (id, tenant, job_id, n, name, summary, data, form, approvers, quorum, requester,"
    " not_requester, token_only, on_deny, on_expire, expires_in, expires_at, remind_every, remind_at, escalate_at,"
    " escalate_to, notify, content_hash, opened_at)"
    " SELECT :id, tenant, id, :n, :name, :summary, :data, :form, :approvers, :quorum, enqueued_by, :not_requester,"
    # Where only a token approves, time does not.
    f" {_TOKEN_ONLY}, :on_deny, CASE WHEN {_TOKEN_ONLY} AND :on_expire = 'approve' THEN 'deny' ELSE :on_expire END,"
    " :expires_in, :now + :expires_in, :remind_every, :now + :remind_every,"
    " :now + :escalate_after, :escalate_to, :notify, :content_hash, :now FROM holdfast_job WHERE id = :job"
)
# The job that notifies people of an approval: a child of the waiting job, in its queue. It contains no token.
APPROVAL_NOTICE = (
    "INSERT INTO holdfast_job (tenant, kind, queue, payload, parent_id, correlation_id, workflow_id, enqueued_by,"
    " source_system, created_at)"
    " SELECT g.tenant, g.notify, j.queue, json_object('notice',"
    " json_object('approval_id', g.id, 'what', :what, 'number', g.reminders)),"
    " g.job_id, coalesce(j.correlation_id, j.id), j.workflow_id, 'approval ' || g.name, 'holdfast', :now"
    " FROM holdfast_approval g JOIN holdfast_job j ON j.id = g.job_id WHERE g.id = :approval AND g.notify IS NOT NULL"
)


def open_approval(job_id: str, pause: dict[str, Any], now: int) -> Steps[None]:
    """Open an approval for a job that its handler has just put into waiting_for_approval."""
    approval = pause["approval"]
    spans = {name: approval.get(name) for name in ("expires_in", "remind_every", "escalate_after")}
    params = {
        "job": job_id,
        "n": pause["n"],
        "name": pause["name"],
        "now": now,
        **{name: approval.get(name) for name in ("id", "summary", "notify", "content_hash")},
        **{name: None if approval.get(name) is None else json.dumps(approval[name]) for name in ("data", "form")},
        **{name: json.dumps(approval.get(name, [])) for name in ("approvers", "escalate_to")},
        **{name: None if span is None else in_micros(span) for name, span in spans.items()},
        "quorum": approval.get("quorum", 1),
        "not_requester": int(approval.get("not_requester", False)),
        "token_only": int(approval.get("token_only", False)),
        "on_deny": approval.get("on_deny", "fail"),
        "on_expire": approval.get("on_expire", "deny"),
    }
    yield Statement(_OPEN_APPROVAL, params)
    yield Statement(APPROVAL_NOTICE, {"approval": approval["id"], "what": "asked", "now": now})
