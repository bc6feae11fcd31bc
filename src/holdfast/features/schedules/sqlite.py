"""Schedules and templates on SQLite.

A decision is applied only if its schedule has not changed since it was read. The next time advances in the transaction
that creates the jobs, and (schedule, time) is a key: so a time is fired once, whichever worker fires it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from holdfast.engine.job import Enqueued, JobSpec
from holdfast.features.schedules.model import (
    MOST_WAITING,
    SETTINGS,
    Decision,
    Firing,
    Placed,
    Schedule,
    Template,
    TemplateDraft,
)
from holdfast.features.schedules.store import ScheduleStore, TemplateStore
from holdfast.stores.codecs import micros
from holdfast.stores.flow import Statement, Steps, flow
from holdfast.stores.sqlite.admission import halted
from holdfast.stores.sqlite.base import SqlitePart, any_tenant, begin_write, end_write, ids_json, write
from holdfast.stores.sqlite.enqueue import add
from holdfast.stores.sqlite.insert_checks import capacity_refusal
from holdfast.stores.sqlite.registry_checks import unregistered

_ADD = (
    "INSERT INTO holdfast_template (tenant, name, version, kind, payload, options, removed, created_by, created_at)"
    " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
)
_PRUNE = "DELETE FROM holdfast_template WHERE tenant = ? AND name = ? AND version <= ? - 1000"
_ADD_ORIGIN = "INSERT INTO holdfast_made_from (job_id, tenant, template, template_version) VALUES (?, ?, ?, ?)"


class SqliteTemplates(SqlitePart, TemplateStore):
    @flow()
    def remove(self, name: str, actor: str, tenant: str) -> Steps[bool]:
        now = yield from begin_write(actor)
        last = yield from self.get(name, tenant).start()
        exists = last is not None and not last.removed
        if exists and last is not None:
            payload, options = json.dumps(last.payload), json.dumps(last.options)
            yield Statement(_ADD, (tenant, name, last.version + 1, last.kind, payload, options, 1, actor, now))
            yield Statement(_PRUNE, (tenant, name, last.version + 1))
        yield from end_write()
        return exists

    @flow(notifies=True)
    def enqueue(self, specs: Sequence[JobSpec], template: str, version: int, tenant: str) -> Steps[list[Enqueued]]:
        now = yield from begin_write(None)
        answers = yield from add(specs, tenant, now)
        made = [(answer.id, tenant, template, version) for answer in answers if answer.created]
        if made:
            yield Statement(_ADD_ORIGIN, made, many=True)
        yield from end_write()
        return answers

    @flow()
    def set(self, draft: TemplateDraft, actor: str, tenant: str) -> Steps[Template | None]:
        now = yield from begin_write(actor)
        last = yield from self.get(draft.name, tenant).start()
        if last is not None and last.kind != draft.kind:
            yield from end_write()
            return None
        same = last is not None and not last.removed and last.options == draft.options
        if not same or last is None or last.payload != json.loads(draft.payload):
            version = 1 if last is None else last.version + 1
            options = json.dumps(draft.options)
            yield Statement(_ADD, (tenant, draft.name, version, draft.kind, draft.payload, options, 0, actor, now))
            yield Statement(_PRUNE, (tenant, draft.name, version))
        yield from end_write()
        return (yield from self.get(draft.name, tenant).start())


_PARTS = (
    *("state", "timing", "zone", "payload", *SETTINGS),
    *("declared_by", "declared_hash", "anchor_at", "next_fire_at", "attend_at"),
)
_SCHEDULE_ADD = (
    f"INSERT INTO holdfast_schedule (id, tenant, name, {', '.join(_PARTS)}, created_by, created_at, updated_by,"
    f" updated_at) SELECT :id, :tenant, :name, :{', :'.join(_PARTS)}, :actor, :now, :actor, :now WHERE NOT EXISTS"
    " (SELECT 1 FROM holdfast_schedule WHERE tenant = :tenant AND name = :name AND state <> 'deleted') RETURNING 1"
)
_CHANGE = (
    f"UPDATE holdfast_schedule SET {', '.join(f'{name} = :{name}' for name in _PARTS)}, problem = NULL, revision ="
    " revision + 1, undeclared_at = CASE WHEN declared_hash IS :declared_hash THEN undeclared_at END,"
    " updated_by = :actor, updated_at = :now"
    " WHERE id = :id AND revision = :revision AND state <> 'deleted' AND (:any OR tenant = :tenant) RETURNING 1"
)
_OF_PROGRAM = "tenant = :tenant AND declared_by = :program AND state <> 'deleted'"
_LISTED = "name IN (SELECT value FROM json_each(:names))"
_DECLARED = (
    f"UPDATE holdfast_schedule SET undeclared_at = NULL WHERE {_OF_PROGRAM} AND undeclared_at IS NOT NULL AND {_LISTED}"
)
_UNDECLARED = (
    f"UPDATE holdfast_schedule SET undeclared_at = :now WHERE {_OF_PROGRAM} AND undeclared_at IS NULL AND NOT {_LISTED}"
    " RETURNING name"
)
_AS_READ = (
    "SELECT overlap FROM holdfast_schedule WHERE id = :id AND revision = :revision AND state = 'active'"
    " AND next_fire_at IS :expected AND (:any OR tenant = :tenant)"
)
# Fired times whose jobs have ended are marked, so that only the unmarked ones have to be read to see whether one runs.
_MARK = (
    "UPDATE holdfast_fire SET ended = 1 WHERE schedule_id = ? AND status = 'fired' AND NOT ended AND NOT EXISTS"
    " (SELECT 1 FROM holdfast_job_state s WHERE s.id = holdfast_fire.job_id"
    " AND s.state IN ('queued', 'leased', 'in_progress', 'retry_waiting', 'waiting_for_approval'))"
    # A job that started a workflow has ended when the workflow has.
    " AND NOT EXISTS (SELECT 1 FROM holdfast_workflow w WHERE w.parent_id = holdfast_fire.job_id AND w.parent_id IS"
    " NOT NULL AND w.finished_at IS NULL)"
)
_RUNNING = "SELECT 1 FROM holdfast_fire WHERE schedule_id = ? AND status = 'fired' AND NOT ended LIMIT 1"
_WAITING = "SELECT due_at FROM holdfast_fire WHERE schedule_id = ? AND status = 'waiting' ORDER BY due_at"
_DECIDED = "SELECT 1 FROM holdfast_fire WHERE schedule_id = ? AND due_at = ? AND NOT manual"
# A distinct time, even if two calls come in the same instant.
_MANUAL = "SELECT max(?, coalesce(max(due_at) + 1, 0)) FROM holdfast_fire WHERE schedule_id = ? AND manual"
_ADD_FIRE = (
    "INSERT INTO holdfast_fire (schedule_id, due_at, manual, tenant, status, job_id, count, since_at, error_code,"
    " error_message, actor, at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)
_RESOLVE = (
    "UPDATE holdfast_fire SET status = ?, job_id = ?, error_code = ?, error_message = ?, at = ?"
    " WHERE schedule_id = ? AND due_at = ? AND NOT manual AND status = 'waiting'"
)
_ADD_SCHEDULE_ORIGIN = (
    "INSERT INTO holdfast_made_from (job_id, tenant, template, template_version, schedule_id, schedule, due_at)"
    " VALUES (?, ?, ?, ?, ?, ?, ?)"
)
_ADVANCE = (
    "UPDATE holdfast_schedule SET next_fire_at = :next, last_fire_at = coalesce(:last, last_fire_at), problem ="
    " :problem, state = :state, attend_at = :attend WHERE id = :id"
)
_SKIP = (
    "UPDATE holdfast_job_state SET state = 'cancelled', finished_at = :now, due_at = NULL,"
    " note = json_object('reason', 'skipped',"
    " 'schedule', (SELECT m.schedule FROM holdfast_made_from m WHERE m.job_id = holdfast_job_state.id))"
    " WHERE id IN (SELECT value FROM json_each(:ids))"
)
_SECOND = 1_000_000
_SCHEDULER = "scheduler"


class SqliteSchedules(SqlitePart, ScheduleStore):
    @flow()
    def add(self, schedule: Placed, actor: str, tenant: str) -> Steps[bool]:
        identity = {"id": schedule.id, "name": schedule.draft.name, "tenant": tenant}
        return bool((yield from write(actor, _SCHEDULE_ADD, **(_columns(schedule, schedule.state) | identity))))

    @flow()
    def change(self, read: Schedule, becomes: Placed, state: str, actor: str, tenant: str) -> Steps[bool]:
        identity = {"id": read.id, "revision": read.revision, "tenant": tenant, "any": any_tenant(tenant)}
        return bool((yield from write(actor, _CHANGE, **(_columns(becomes, state) | identity))))

    @flow()
    def declare(self, declared_by: str, names: Sequence[str], tenant: str) -> Steps[list[str]]:
        now = yield from begin_write(_SCHEDULER)
        params = {"tenant": tenant, "program": declared_by, "names": ids_json(names), "now": now}
        yield Statement(_DECLARED, params)
        rows = yield Statement(_UNDECLARED, params)
        yield from end_write()
        return sorted(str(row[0]) for row in rows)

    @flow(notifies=True)
    def fire(self, decisions: Sequence[Decision], tenant: str) -> Steps[int]:
        now = yield from begin_write(_SCHEDULER)
        applied, skipped = 0, list[str]()
        is_halted = yield from halted()
        for decision in [] if is_halted else sorted(decisions, key=lambda decision: decision.schedule.id):
            read = decision.schedule
            params = {"id": read.id, "revision": read.revision, "expected": _micros(read.next_fire_at)}
            rows = yield Statement(_AS_READ, {**params, "any": any_tenant(tenant), "tenant": tenant})
            if rows:
                applied += 1
                yield from _apply(decision, now, skipped)
        yield from end_write()
        if skipped:  # unsign has given them a state
            yield from begin_write(_SCHEDULER)
            yield Statement(_SKIP, {"now": now, "ids": ids_json(skipped)})
            yield from end_write()
        return applied

    @flow(notifies=True)
    def run(
        self, schedule_id: str, firing: Firing, anyway: bool, actor: str, tenant: str
    ) -> Steps[tuple[str | None, str | None, str | None]]:
        now = yield from begin_write(actor)
        text = "SELECT name FROM holdfast_schedule WHERE id = ? AND state <> 'deleted' AND (? OR tenant = ?)"
        names = yield Statement(text, (schedule_id, any_tenant(tenant), tenant))
        schedule = None if not names else (yield from self.get(names[0][0], tenant).start())
        result: tuple[str | None, str | None, str | None] = (None, "schedule_not_found", None)
        if schedule is not None and schedule.id == schedule_id:
            if schedule.overlap != "allow" and not anyway and (yield from _is_running(schedule.id)):
                result = (None, "schedule_running", None)
            else:
                rows = yield Statement(_MANUAL, (now, schedule.id))
                result = (yield from _make(schedule, firing, rows[0][0], now, True, actor))[1:]
        yield from end_write()
        return result


def _apply(decision: Decision, now: int, skipped: list[str]) -> Steps[None]:
    schedule = decision.schedule
    running = yield from _is_running(schedule.id)
    waiting = [row[0] for row in (yield Statement(_WAITING, (schedule.id,)))]
    if waiting and not running and decision.spare is not None:
        status, *_ = yield from _make(schedule, decision.spare, waiting.pop(0), now, False, _SCHEDULER, waited=True)
        running = status == "fired"
    for firing in sorted(decision.firings, key=lambda firing: firing.due_at):
        due = micros(firing.due_at)
        if (yield Statement(_DECIDED, (schedule.id, due))):
            continue  # the key decides: a time that has a row is done
        if firing.action != "fire":
            since = _micros(firing.since_at)
            result: tuple[Any, ...] = (firing.action, None, firing.count, since, firing.code, firing.message)
            yield Statement(_ADD_FIRE, (schedule.id, due, 0, schedule.tenant, *result, _SCHEDULER, now))
        elif schedule.overlap == "queue" and (running or waiting) and len(waiting) < MOST_WAITING:
            result = ("waiting", None, 1, None, None, None)
            yield Statement(_ADD_FIRE, (schedule.id, due, 0, schedule.tenant, *result, _SCHEDULER, now))
            waiting.append(due)
        else:
            skip = schedule.overlap != "allow" and (running or bool(waiting))
            status, job_id, *_ = yield from _make(schedule, firing, due, now, False, _SCHEDULER, skip=skip)
            if status == "skipped" and job_id is not None:
                skipped.append(job_id)
            running = running or status == "fired"
    fired = [firing.due_at for firing in decision.firings if firing.action != "missed"]
    ended = decision.next_fire_at is None and not waiting
    attend = None if ended else _micros(decision.attend_at)
    if waiting:
        attend = now + _SECOND if attend is None else min(attend, now + _SECOND)
    params = {
        "id": schedule.id,
        "next": _micros(decision.next_fire_at),
        "last": _micros(max(fired, default=None)),
        "problem": decision.problem,
        "state": "ended" if ended else "active",
        "attend": attend,
    }
    yield Statement(_ADVANCE, params)


def _is_running(schedule_id: str) -> Steps[bool]:
    yield Statement(_MARK, (schedule_id,))
    rows = yield Statement(_RUNNING, (schedule_id,))
    return bool(rows)


def _make(
    schedule: Schedule,
    firing: Firing,
    due: int,
    now: int,
    manual: bool,
    actor: str,
    *,
    skip: bool = False,
    waited: bool = False,
) -> Steps[tuple[str, str | None, str | None, str | None]]:
    """Create the job of one time and record the result. Returns the status, the job, and the error code and message.
    ``waited``: the time has a row with the status ``waiting``."""
    assert firing.job is not None
    refused = yield from capacity_refusal(1, firing.job.kind, schedule.tenant, now)
    if refused is None:
        refused = yield from unregistered([firing.job], schedule.tenant, now)
    if refused is None:
        answer = (yield from add([firing.job], schedule.tenant, now))[0]
    else:  # recorded here; the other schedules continue
        answer = Enqueued(None, False, refused.code, None, str(refused))
    status, job_id, code, detail = "skipped" if skip else "fired", answer.id, None, None
    if job_id is None or not answer.created:
        status, job_id, code, detail = "failed", None, answer.reason or "refused", answer.detail
    else:
        template = schedule.template if firing.template_version is not None else None
        origin = (job_id, schedule.tenant, template, firing.template_version, schedule.id, schedule.name, due)
        yield Statement(_ADD_SCHEDULE_ORIGIN, origin)
    if waited:
        yield Statement(_RESOLVE, (status, job_id, code, detail, now, schedule.id, due))
    else:
        result = (status, job_id, 1, None, code, detail)
        yield Statement(_ADD_FIRE, (schedule.id, due, int(manual), schedule.tenant, *result, actor, now))
    return status, job_id, code, detail


def _columns(placed: Placed, state: str) -> dict[str, Any]:
    columns = placed.columns(state)
    times = {name: _micros(columns[name]) for name in ("anchor_at", "next_fire_at", "attend_at")}
    return {**columns, **times, "options": json.dumps(columns["options"])}


def _micros(moment: datetime | None) -> int | None:
    return None if moment is None else micros(moment)
