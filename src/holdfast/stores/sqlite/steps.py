"""``store.steps`` on SQLite: save finished steps, checkpoints and artifacts; suspend a job that waits for an event, a
time or an approval."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from holdfast.engine.ids import parse_id
from holdfast.engine.messages import MAILBOX, is_mailbox
from holdfast.engine.payload import MARK, canonical, decode_for_display
from holdfast.engine.settlement import Settlement
from holdfast.engine.steps import Saved, StepEntry, projection
from holdfast.errors import StoreError
from holdfast.stores.codecs import from_micros, in_micros, micros
from holdfast.stores.flow import Statement, Steps, flow
from holdfast.stores.job_reads import StepReads
from holdfast.stores.sqlite.base import SqlitePart, act_under, any_tenant, begin_write, end_write, note_action
from holdfast.stores.sqlite.codec import NEVER

_HELD = (
    "SELECT id, attempt, tenant FROM holdfast_job_state"
    " WHERE id IN (SELECT value FROM json_each(?)) AND +lease = ? AND +state = 'in_progress'"
)
_STEP = (
    "INSERT INTO holdfast_step (job_id, n, tenant, name, kind, value, error, tries, attempt, started_at, ended_at,"
    " branch)"
)
_UNLESS_OVER = (
    " ON CONFLICT (job_id, n) DO UPDATE SET value = excluded.value, error = excluded.error, tries = excluded.tries,"
    " attempt = excluded.attempt, ended_at = excluded.ended_at WHERE ended_at IS NULL"
)
# VALUES instead of SELECT, which would put each row into a temporary table first: there are triggers.
_SAVE = f"{_STEP} VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?){_UNLESS_OVER}"
# A trigger refuses an insert that conflicts with a finished step (it could be a REPLACE), so the insert excludes them.
_IS_FINISHED = "EXISTS (SELECT 1 FROM holdfast_step o WHERE o.job_id = :job AND o.n = :n AND o.ended_at IS NOT NULL)"
_SAVE_SUSPENDED = (
    f"{_STEP} SELECT id, :n, tenant, :name, :kind, :value, :error, :tries, attempt, :now - :took, :now, :branch"
    f" FROM holdfast_job_state WHERE id = :job AND NOT {_IS_FINISHED}{_UNLESS_OVER}"
)
_FINISHED = (
    "SELECT t.job_id, t.n, t.value FROM json_each(?) o JOIN holdfast_step t"
    " ON t.job_id = json_extract(o.value, '$[0]') AND t.n = json_extract(o.value, '$[1]') WHERE t.ended_at IS NOT NULL"
)
_PAUSE = (
    "INSERT INTO holdfast_step (job_id, n, tenant, name, kind, error, tries, attempt, started_at, wake_at, shape,"
    " wanted, awaits, branch) SELECT id, :n, tenant, :name, :kind, :error, :tries, attempt, :now, :due, :shape,"
    " :wanted, :awaits, :branch"
    f" FROM holdfast_job_state WHERE id = :job AND NOT {_IS_FINISHED}"
    " ON CONFLICT (job_id, n) DO UPDATE SET error = excluded.error, tries = excluded.tries,"
    " attempt = excluded.attempt, wake_at = excluded.wake_at, shape = excluded.shape, wanted = excluded.wanted,"
    " awaits = excluded.awaits WHERE ended_at IS NULL"
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
_IN_THIS_ATTEMPT = "t.attempt = holdfast_job_state.attempt"
# The job is suspended in this wait, which is over; `all`: it waits until the last of several waits is over.
_CONTINUES = (
    "state = 'retry_waiting' AND due_at < {never} AND EXISTS (SELECT 1 FROM holdfast_step t WHERE t.job_id ="
    " holdfast_job_state.id AND {waits})"
    " AND (json_extract(note, '$.all') IS NULL OR NOT EXISTS ("
    "SELECT 1 FROM holdfast_step o WHERE o.job_id = holdfast_job_state.id AND o.attempt = holdfast_job_state.attempt"
    " AND o.ended_at IS NULL AND (o.kind = 'event' OR o.awaits IS NOT NULL AND EXISTS (SELECT 1 FROM"
    " holdfast_job_state c WHERE c.id = o.awaits AND c.finished_at IS NULL))))"
)
_MESSAGE = (
    "SELECT id, data, asked, sent_by, sent_at FROM holdfast_message m WHERE m.job_id = :job AND m.name = :name"
    " AND NOT EXISTS (SELECT 1 FROM holdfast_step t WHERE t.job_id = :job AND t.kind = 'event'"
    " AND json_extract(t.value, '$.id') = m.id) ORDER BY m.n, m.sent_at, m.id LIMIT 1"
)
WAKE = (
    "UPDATE holdfast_job_state SET state = 'queued', due_at = NULL, note = :note WHERE id = :job AND "
    f"{_CONTINUES.format(never=NEVER, waits=f't.n = :n AND {_IN_THIS_ATTEMPT}')} RETURNING 1"
)
# Its handler may have read the wait before it was over.
_WAKE_AT_ONCE = WAKE.replace(_IN_THIS_ATTEMPT, f"({_IN_THIS_ATTEMPT} OR t.ended_at IS NOT NULL)")
# The jobs that wait for these, which have ended.
_WAKE_WAITERS = (
    "UPDATE holdfast_job_state SET state = 'queued', due_at = NULL, note = json_object('ended', :job) WHERE id IN"
    " (SELECT t.job_id FROM holdfast_step t WHERE t.awaits = :job AND t.ended_at IS NULL)"
    f" AND {_CONTINUES.format(never=NEVER, waits=f't.awaits = :job AND t.ended_at IS NULL AND {_IN_THIS_ATTEMPT}')}"
)
_HAS_ENDED = "SELECT 1 WHERE NOT EXISTS (SELECT 1 FROM holdfast_job_state WHERE id = ? AND finished_at IS NULL)"
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
    " ended_at, shape, wanted, branch) SELECT :new, o.n, o.tenant, o.name, o.kind,"
    " coalesce(json_extract(p.value, '$.value'), o.value), o.error, o.tries, 0, o.started_at, o.wake_at, o.ended_at,"
    " o.shape, o.wanted, o.branch"
    " FROM holdfast_step o"
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
_RELEASE_KEY = (
    "DELETE FROM holdfast_idempotency WHERE job_id = :id AND (tenant, kind, key) = (SELECT j.tenant, j.kind,"
    " j.idempotency_key FROM holdfast_job j JOIN holdfast_job_state s ON s.n = j.n WHERE j.id = :id"
    " AND s.state = 'succeeded' AND s.settled_by = :lease) RETURNING key, payload_hash"
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
        held = {(row[0], row[1]): row[2] for row in (yield Statement(_HELD, (ids, lease)))}
        numbers = json.dumps([(job_id, entry.n) for job_id, _, entry in entries])
        finished = {(row[0], row[1]): row[2] for row in (yield Statement(_FINISHED, (numbers,)))}
        results: list[Saved] = []
        rows: dict[tuple[str, int], tuple[Any, ...]] = {}  # branches that run at once may save the same deferred entry
        for job_id, attempt, entry in entries:
            if (job_id, attempt) not in held:
                results.append(Saved(job_id, entry.n, "stale"))
            elif (job_id, entry.n) in finished:
                value = finished[job_id, entry.n]
                results.append(Saved(job_id, entry.n, "kept", value and decode_for_display(value)))
            else:
                error, took = _error(entry), in_micros(entry.took)
                row = (job_id, entry.n, held[job_id, attempt], entry.name, entry.kind, entry.value, error, entry.tries)
                rows.setdefault((job_id, entry.n), (*row, attempt, now - took, now, entry.branch))
        if rows:
            yield Statement(_SAVE, tuple(rows.values()), many=True)
            values = ((row[0], row[5]) for row in rows.values())
            if stored := [each for each in values if each[1] is not None and each[1].startswith(MARK)]:
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
    def release_key(self, claim_id: str, lease: str, tenant: str) -> Steps[tuple[str | None, str | None]]:
        yield from act_under(lease, tenant)
        rows = yield Statement(_RELEASE_KEY, {"id": claim_id, "lease": lease})
        yield from end_write()
        return (rows[0][0], rows[0][1]) if rows else (None, None)

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
    for values in item.steps or ():
        entry = StepEntry(**values)
        took, names = in_micros(entry.took), {"job": item.id, "now": now, "error": _error(entry)}
        yield Statement(_SAVE_SUSPENDED, {**dataclasses.asdict(entry), **names, "took": took})
    waits = waits_of(item.pause or {})
    for pause in waits:
        wanted = pause.get("wanted")
        params = {
            "job": item.id,
            "n": pause["n"],
            "name": pause["name"],
            "kind": pause["kind"],
            "error": None if pause.get("error") is None else json.dumps(pause["error"]),
            "tries": pause.get("tries", 1),
            "now": now,
            "due": None if pause["kind"] == "approval" else _due(pause, now),
            "shape": None if wanted is None else json.dumps(sorted(wanted)),
            "wanted": None if wanted is None else canonical(wanted),
            "awaits": pause.get("awaits"),
            "branch": pause.get("branch"),
        }
        yield Statement(_PAUSE, params)
        if pause.get("approval") is not None:
            yield from open_approval(item.id, pause, now)
    for pause in waits:
        if pause.get("wanted") is not None:
            yield from _check_past_events(item.id, pause, now)
        elif pause.get("awaits") is not None and (yield Statement(_HAS_ENDED, (pause["awaits"],))):
            note = json.dumps({"ended": pause["awaits"]})
            yield Statement(_WAKE_AT_ONCE, {"job": item.id, "n": pause["n"], "note": note})


def waits_of(pause: dict[str, Any]) -> list[dict[str, Any]]:
    """What a suspended attempt waits for, each by itself."""
    return [pause, *pause.get("also", ())]


def wake_waiters(job_id: str) -> Steps[None]:
    """Continue the jobs that wait for this one, which has ended. For an end that the trigger leaves out."""
    yield Statement(_WAKE_WAITERS, {"job": job_id})


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
    yield Statement(_WAKE_AT_ONCE, {"job": job_id, "n": pause["n"], "note": json.dumps({"event": pause["name"]})})


def _matching_event(job_id: str, pause: dict[str, Any], tenant: str, since: int) -> Steps[str | None]:
    """The value of a step for the first event that matches."""
    if is_mailbox(pause["name"]):
        return (yield from next_message(job_id, pause["name"]))
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


def next_message(job_id: str, mailbox: str) -> Steps[str | None]:
    """The value of a step for the first message that the job has not received."""
    rows = yield Statement(_MESSAGE, {"job": job_id, "name": mailbox.removeprefix(MAILBOX)})
    for message_id, data, asked, sent_by, sent_at in rows:
        content = f'{{"data":{data},"asked":{"true" if asked else "false"}}}'
        return event_value(message_id, mailbox, content, sent_by, sent_at)
    return None


def due(pause: dict[str, Any], now: int) -> int:
    """When a pause ends: that of several waits with the first of them, or with the last."""
    return (max if pause.get("all") else min)(_due(each, now) for each in waits_of(pause))


def _due(pause: dict[str, Any], now: int) -> int:
    return micros(datetime.fromisoformat(pause["until"])) if "until" in pause else now + in_micros(pause["delay"])


def _error(entry: StepEntry) -> str | None:
    return None if entry.error is None else json.dumps(entry.error)


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
