"""Durable steps and application events: remember what is over, put down what a job waits for, tell those who wait."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from holdfast.engine.ids import parse_id
from holdfast.engine.payload import MARK, canonical, look_at
from holdfast.engine.settlement import Settlement
from holdfast.engine.steps import Saved, StepEntry, projection
from holdfast.errors import InvalidInput
from holdfast.stores.codecs import from_micros, in_micros, micros
from holdfast.stores.flow import Statement, Steps, flow
from holdfast.stores.job_reads import StepReads
from holdfast.stores.requests import SendEvent, SentResult
from holdfast.stores.sqlite.base import SqlitePart, act_under, any_tenant, sign, unsign
from holdfast.stores.sqlite.claim import SqliteProgress, uploaded
from holdfast.stores.sqlite.registry_checks import refuse_event

_HELD = (
    "SELECT id, attempt FROM job_state"
    " WHERE id IN (SELECT value FROM json_each(?)) AND +lease = ? AND +state = 'in_progress'"
)
# An insert that meets a step that is over is refused (it might be a REPLACE), so it is not tried.
_IS_OVER = "EXISTS (SELECT 1 FROM step o WHERE o.job_id = :job AND o.n = :n AND o.ended_at IS NOT NULL)"
_SAVE = (
    "INSERT INTO step (job_id, n, tenant, name, kind, value, error, tries, attempt, started_at, ended_at)"
    " SELECT id, ?2, tenant, ?3, ?4, ?5, ?6, ?7, attempt, ?9 - ?8, ?9 FROM job_state WHERE id = ?1"
    " AND NOT EXISTS (SELECT 1 FROM step o WHERE o.job_id = ?1 AND o.n = ?2 AND o.ended_at IS NOT NULL)"
    " ON CONFLICT (job_id, n) DO UPDATE SET value = excluded.value, error = excluded.error, tries = excluded.tries,"
    " attempt = excluded.attempt, ended_at = excluded.ended_at WHERE ended_at IS NULL"
)
_OVER = (
    "SELECT t.job_id, t.n, t.value FROM json_each(?) o JOIN step t"
    " ON t.job_id = json_extract(o.value, '$[0]') AND t.n = json_extract(o.value, '$[1]') WHERE t.ended_at IS NOT NULL"
)
_PAUSE = (
    "INSERT INTO step (job_id, n, tenant, name, kind, error, tries, attempt, started_at, wake_at, shape, wanted)"
    " SELECT id, :n, tenant, :name, :kind, :error, :tries, attempt, :now, due_at, :shape, :wanted"
    f" FROM job_state WHERE id = :job AND NOT {_IS_OVER}"
    " ON CONFLICT (job_id, n) DO UPDATE SET error = excluded.error, tries = excluded.tries,"
    " attempt = excluded.attempt, wake_at = excluded.wake_at, shape = excluded.shape, wanted = excluded.wanted"
    " WHERE ended_at IS NULL"
)
_FULFIL = "UPDATE step SET value = :value, ended_at = :now WHERE job_id = :job AND n = :n AND ended_at IS NULL"
_WAITING = (
    "SELECT j.tenant, j.created_at, t.ended_at FROM job j JOIN step t ON t.job_id = j.id WHERE j.id = ? AND t.n = ?"
)
_HAD = "SELECT json_extract(value, '$.id') FROM step WHERE job_id = ? AND kind = 'event' AND value IS NOT NULL"
_TOLD = (
    "SELECT id, data, sent_by, sent_at FROM app_event WHERE tenant = :tenant AND name = :name AND sent_at >= :since"
    " AND (job_id IS NULL OR job_id = :job) ORDER BY sent_at, id"
)
_GO_ON = (
    "UPDATE job_state SET state = 'queued', due_at = NULL, note = :note WHERE id = :job AND state = 'retry_waiting'"
)
_WAKE = f"{_GO_ON} AND due_at = (SELECT wake_at FROM step WHERE job_id = :job AND n = :n) RETURNING 1"
_TELL = (
    "INSERT INTO app_event (id, tenant, name, data, key, job_id, sent_by, sent_at, cause_id)"
    " VALUES (:id, :tenant, :name, :data, :key, :job, :actor, :now, :cause)"
)
_TOLD_BEFORE = "SELECT id FROM app_event WHERE tenant = ? AND name = ? AND key = ?"
_OPEN = "tenant = :tenant AND name = :name AND kind = 'event' AND ended_at IS NULL"
# Step from shape to shape along the index: there are few of them, however many wait.
_NEXT_SHAPE = f"SELECT shape FROM step INDEXED BY waiting WHERE {_OPEN} AND shape > :shape ORDER BY shape LIMIT 1"
_WAITS = (
    f"SELECT job_id, n FROM step INDEXED BY waiting WHERE {_OPEN} AND shape = :shape AND wanted = :wanted"
    " AND (:job IS NULL OR job_id = :job) ORDER BY job_id, n"
)
_IS_DEAD = "SELECT 1 FROM job_state WHERE id = :job AND state = 'dead_letter' AND (:any OR tenant = :tenant)"
_FORGET = "DELETE FROM step WHERE job_id = ? AND n >= ? RETURNING 1"


class SqliteSteps(SqlitePart, SqliteProgress, StepReads):
    @flow()
    def save(self, lease: str, entries: Sequence[tuple[str, int, StepEntry]], tenant: str) -> Steps[list[Saved]]:
        now = yield from act_under(lease, tenant)
        ids = json.dumps(sorted({job_id for job_id, _, _ in entries}))
        held = {(row[0], row[1]) for row in (yield Statement(_HELD, (ids, lease)))}
        places = json.dumps([(job_id, entry.n) for job_id, _, entry in entries])
        over = {(row[0], row[1]): row[2] for row in (yield Statement(_OVER, (places,)))}
        answers, saved = [], []
        for job_id, attempt, entry in entries:
            if (job_id, attempt) not in held:
                answers.append(Saved(job_id, entry.n, "stale"))
            elif (job_id, entry.n) in over:
                value = over[job_id, entry.n]
                answers.append(Saved(job_id, entry.n, "kept", value and look_at(value)))
            else:
                saved.append(_row(job_id, entry, now))
        if saved:
            yield Statement(_SAVE, saved, many=True)
            if stored := [(row[0], row[4]) for row in saved if row[4] is not None and row[4].startswith(MARK)]:
                yield from uploaded(stored)
        yield from unsign()
        return answers

    @flow()
    def rewind(self, job_id: str, to: int, actor: str, tenant: str) -> Steps[int | None]:
        yield from sign(actor)
        scope = {"job": parse_id(job_id), "any": any_tenant(tenant), "tenant": tenant}
        dead = yield Statement(_IS_DEAD, scope)
        gone = (yield Statement(_FORGET, (parse_id(job_id), to))) if dead else []
        yield from unsign()
        return len(gone) if dead else None


class SqliteSending:
    @flow(tells=True)
    def send(self, event: SendEvent, actor: str, tenant: str) -> Steps[SentResult]:
        if any_tenant(tenant):
            raise InvalidInput("an event must be sent in one tenant")
        now = yield from sign(actor)
        name, job = event.name, None if event.job_id is None else parse_id(event.job_id)
        before = [] if event.key is None else (yield Statement(_TOLD_BEFORE, (tenant, name, event.key)))
        if before:
            yield from unsign()
            return SentResult(before[0][0], False, 0)
        yield from refuse_event(event, tenant, now)
        facts = {"id": event.id, "tenant": tenant, "name": name, "data": event.data, "key": event.key, "job": job}
        yield Statement(_TELL, facts | {"actor": actor, "now": now, "cause": event.cause_id})
        value = _event(event.id, name, event.data, actor, now)
        told, woke, shape = look_at(event.data), 0, ""
        while rows := (yield Statement(_NEXT_SHAPE, {"tenant": tenant, "name": name, "shape": shape})):
            shape = rows[0][0]
            wanted = canonical(projection(told, json.loads(shape)))
            waits = yield Statement(
                _WAITS, {"tenant": tenant, "name": name, "shape": shape, "wanted": wanted, "job": job}
            )
            for waiting, n in waits:
                # Those that were put to sleep for it go on; others are on their way already, and will find it.
                yield Statement(_FULFIL, {"value": value, "now": now, "job": waiting, "n": n})
                woken = yield Statement(_WAKE, {"job": waiting, "n": n, "note": json.dumps({"event": name})})
                woke += len(woken)
        yield from unsign()
        return SentResult(event.id, True, woke)


def suspend(item: Settlement, now: int) -> Steps[None]:
    """The attempt has just ended by waiting for something: write down what for. Inside a flow that has signed."""
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
        yield from _look_back(item.id, pause, now)
    if pause.get("approval") is not None:
        yield from open_approval(item.id, pause, now)


def _look_back(job_id: str, pause: dict[str, Any], now: int) -> Steps[None]:
    """An event that was told before the wait began is as good as one that comes. One the job has had is not news."""
    ((tenant, created, ended),) = yield Statement(_WAITING, (job_id, pause["n"]))
    if ended is None:
        since = created - in_micros(pause.get("since", 0.0))
        value = yield from _told(job_id, pause, tenant, since)
        if value is None:
            return
        yield Statement(_FULFIL, {"value": value, "now": now, "job": job_id, "n": pause["n"]})
    # Or it came after the handler had read what it has behind it: then the job does not sleep over it.
    yield Statement(_GO_ON, {"job": job_id, "note": json.dumps({"event": pause["name"]})})


def _told(job_id: str, pause: dict[str, Any], tenant: str, since: int) -> Steps[str | None]:
    """The first event that fits, as a step keeps it."""
    wanted = canonical(pause["wanted"])
    had = {row[0] for row in (yield Statement(_HAD, (job_id,)))}
    events = yield Statement(_TOLD, {"tenant": tenant, "name": pause["name"], "since": since, "job": job_id})
    for event_id, data, sent_by, sent_at in events:
        if event_id not in had and canonical(projection(look_at(data), list(pause["wanted"]))) == wanted:
            return _event(event_id, pause["name"], data, sent_by, sent_at)
    return None


def due(pause: dict[str, Any], now: int) -> int:
    """When a pause is over."""
    return micros(datetime.fromisoformat(pause["until"])) if "until" in pause else now + in_micros(pause["delay"])


def _row(job_id: str, entry: StepEntry, now: int) -> tuple[Any, ...]:
    """The parameters of ``_SAVE``."""
    error, took = None if entry.error is None else json.dumps(entry.error), in_micros(entry.took)
    return job_id, entry.n, entry.name, entry.kind, entry.value, error, entry.tries, took, now


def _event(event_id: str, name: str, data: str, sent_by: str, sent_at: int) -> str:
    facts = json.dumps({"id": event_id, "name": name, "sent_by": sent_by, "sent_at": _written(sent_at)})
    return f'{facts[:-1]},"data":{data}}}'


def _written(at: int) -> str:
    return from_micros(at).isoformat(timespec="microseconds").replace("+00:00", "Z")


_OPEN_APPROVAL = (
    "INSERT INTO approval (id, tenant, job_id, n, name, summary, data, form, approvers, quorum, requester,"
    " not_requester, on_deny, on_expire, expires_in, expires_at, remind_every, remind_at, escalate_at,"
    " escalate_to, notify, content_hash, opened_at)"
    " SELECT :id, tenant, id, :n, :name, :summary, :data, :form, :approvers, :quorum, enqueued_by, :not_requester,"
    " :on_deny, :on_expire, :expires_in, :now + :expires_in, :remind_every, :now + :remind_every,"
    " :now + :escalate_after, :escalate_to, :notify, :content_hash, :now FROM job WHERE id = :job"
)
# The kind of job that tells people, a child of the job that asked and in its queue. No token is part of it.
APPROVAL_NOTICE = (
    "INSERT INTO job (tenant, kind, queue, payload, parent_id, correlation_id, workflow_id, enqueued_by,"
    " source_system, created_at)"
    " SELECT g.tenant, g.notify, j.queue, json_object('notice',"
    " json_object('approval_id', g.id, 'what', :what, 'number', g.reminders)),"
    " g.job_id, coalesce(j.correlation_id, j.id), j.workflow_id, 'approval ' || g.name, 'holdfast', :now"
    " FROM approval g JOIN job j ON j.id = g.job_id WHERE g.id = :approval AND g.notify IS NOT NULL"
)


def open_approval(job_id: str, pause: dict[str, Any], now: int) -> Steps[None]:
    """The job has just been put into waiting_for_approval by its own handler."""
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
        "on_deny": approval.get("on_deny", "fail"),
        "on_expire": approval.get("on_expire", "deny"),
    }
    yield Statement(_OPEN_APPROVAL, params)
    yield Statement(APPROVAL_NOTICE, {"approval": approval["id"], "what": "asked", "now": now})
