"""The verbs of templates and schedules; the functions are in ``code/53_schedules.sql``."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime

from holdfast.engine.job import Enqueued, JobSpec
from holdfast.features.schedules.model import Decision, Firing, Placed, Schedule, Template, TemplateDraft
from holdfast.stores.flow import Steps, flow
from holdfast.stores.postgres.base import Calls
from holdfast.stores.postgres.codec import enqueue_document, enqueued, job_document
from holdfast.stores.reads import Reads


class ScheduleVerbs(Calls, Reads):
    @flow()
    def put_template(self, draft: TemplateDraft, actor: str, tenant: str) -> Steps[Template | None]:
        options = json.dumps(draft.options)
        rows = yield self._call(
            "put_template",
            "%s, %s, %s::json, %s::jsonb, false, %s, %s",
            draft.name,
            draft.kind,
            draft.payload,
            options,
            actor,
            tenant,
        )
        if rows[0][1] is not None:
            return None
        return (yield from self.template(draft.name, tenant).start())

    @flow(single=True)
    def remove_template(self, name: str, actor: str, tenant: str) -> Steps[bool]:
        rows = yield self._call("put_template", "%s, null, null, null, true, %s, %s", name, actor, tenant)
        return rows[0][1] is None

    @flow(single=True)
    def enqueue_made(self, specs: Sequence[JobSpec], template: str, version: int, tenant: str) -> Steps[list[Enqueued]]:
        document = enqueue_document(specs)
        rows = yield self._call("enqueue_made", "%s::json, %s, %s, %s", document, template, version, tenant)
        return enqueued(rows)

    @flow(single=True)
    def add_schedule(self, schedule: Placed, actor: str, tenant: str) -> Steps[bool]:
        whose = {"id": schedule.id, "name": schedule.draft.name}
        definition = _definition(schedule, schedule.state, **whose)
        rows = yield self._call("add_schedule", "%s::json, %s, %s", definition, actor, tenant)
        return bool(rows[0][0])

    @flow(single=True)
    def change_schedule(self, read: Schedule, becomes: Placed, state: str, actor: str, tenant: str) -> Steps[bool]:
        definition = _definition(becomes, state)
        rows = yield self._call(
            "change_schedule", "%s, %s, %s::json, %s, %s", read.id, read.revision, definition, actor, tenant
        )
        return bool(rows[0][0])

    @flow(single=True)
    def declare_schedules(self, declared_by: str, names: Sequence[str], tenant: str) -> Steps[list[str]]:
        rows = yield self._call("declare_schedules", "%s, %s::text[], %s", declared_by, list(names), tenant)
        return sorted(str(row[0]) for row in rows)

    @flow(single=True)
    def fire_schedules(self, decisions: Sequence[Decision], tenant: str) -> Steps[int]:
        document = "[" + ",".join(map(_decision, decisions)) + "]"
        rows = yield self._call("fire_schedules", "%s::json, %s", document, tenant)
        return len(rows)

    @flow(single=True)
    def run_schedule(
        self, schedule_id: str, firing: Firing, anyway: bool, actor: str, tenant: str
    ) -> Steps[tuple[str | None, str | None, str | None]]:
        assert firing.job is not None
        rows = yield self._call(
            "run_schedule",
            "%s, %s::json, %s, %s, %s, %s",
            schedule_id,
            job_document(firing.job),
            firing.template_version,
            anyway,
            actor,
            tenant,
        )
        job_id, reason, detail = rows[0]
        return None if job_id is None else str(job_id), reason, detail


def _definition(placed: Placed, state: str, **whose: str) -> str:
    """The columns as one JSON text; the payload is JSON already and put in as it is."""
    draft = placed.draft
    columns = {
        **whose,
        "state": state,
        "timing": draft.timing.text,
        "zone": draft.timing.zone,
        "kind": draft.kind,
        "template": draft.template,
        "options": draft.options,
        "missed": draft.missed,
        "overlap": draft.overlap,
        "jitter": draft.jitter,
        "declared_by": placed.declared_by,
        "declared_hash": placed.declared_hash,
        "anchor_at": _text(placed.anchor),
        "next_fire_at": _text(placed.next_fire_at),
        "attend_at": _text(placed.attend_at) if state == "active" else None,
    }
    return f'{{"payload":{draft.payload},{json.dumps(columns)[1:]}'


def _decision(decision: Decision) -> str:
    read = decision.schedule
    columns = {
        "schedule": read.id,
        "revision": read.revision,
        "expected": _text(read.next_fire_at),
        "next_fire_at": _text(decision.next_fire_at),
        "attend_at": _text(decision.attend_at),
        "problem": decision.problem,
    }
    firings = ",".join(map(_firing, decision.firings))
    spare = "" if decision.spare is None else f',"spare":{_firing(decision.spare)}'
    return f'{json.dumps(columns)[:-1]}{spare},"firings":[{firings}]}}'


def _firing(firing: Firing) -> str:
    columns = {
        "due_at": _text(firing.due_at),
        "action": firing.action,
        "template_version": firing.template_version,
        "count": firing.count,
        "since_at": _text(firing.since_at),
        "code": firing.code,
        "message": firing.message,
    }
    job = "" if firing.job is None else f',"job":{job_document(firing.job)}'
    return f"{json.dumps(columns)[:-1]}{job}}}"


def _text(moment: datetime | None) -> str | None:
    return None if moment is None else moment.isoformat()
