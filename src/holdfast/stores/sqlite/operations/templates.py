"""Templates (SC-8): a new version a change, and jobs that keep which version they were made from."""

from __future__ import annotations

import json
from collections.abc import Sequence

from holdfast.engine.job import Enqueued, JobSpec
from holdfast.features.schedules.model import Template, TemplateDraft
from holdfast.stores.flow import Statement, Steps, flow
from holdfast.stores.reads import Reads
from holdfast.stores.sqlite.base import sign, unsign
from holdfast.stores.sqlite.enqueue import add

_ADD = (
    "INSERT INTO template (tenant, name, version, kind, payload, options, removed, created_by, created_at)"
    " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
)
_FORGET = "DELETE FROM template WHERE tenant = ? AND name = ? AND version <= ? - 1000"
_MADE = "INSERT INTO made_from (job_id, tenant, template, template_version) VALUES (?, ?, ?, ?)"


class TemplateVerbs(Reads):
    @flow()
    def put_template(self, draft: TemplateDraft, actor: str, tenant: str) -> Steps[Template | None]:
        now = yield from sign(actor)
        last = yield from self.template(draft.name, tenant).start()
        if last is not None and last.kind != draft.kind:
            yield from unsign()
            return None
        same = last is not None and not last.removed and last.options == draft.options
        if not same or last is None or last.payload != json.loads(draft.payload):
            version = 1 if last is None else last.version + 1
            options = json.dumps(draft.options)
            yield Statement(_ADD, (tenant, draft.name, version, draft.kind, draft.payload, options, 0, actor, now))
            yield Statement(_FORGET, (tenant, draft.name, version))
        yield from unsign()
        return (yield from self.template(draft.name, tenant).start())

    @flow()
    def remove_template(self, name: str, actor: str, tenant: str) -> Steps[bool]:
        now = yield from sign(actor)
        last = yield from self.template(name, tenant).start()
        there = last is not None and not last.removed
        if there and last is not None:
            payload, options = json.dumps(last.payload), json.dumps(last.options)
            yield Statement(_ADD, (tenant, name, last.version + 1, last.kind, payload, options, 1, actor, now))
            yield Statement(_FORGET, (tenant, name, last.version + 1))
        yield from unsign()
        return there

    @flow(tells=True)
    def enqueue_made(self, specs: Sequence[JobSpec], template: str, version: int, tenant: str) -> Steps[list[Enqueued]]:
        now = yield from sign(None)
        answers = yield from add(specs, tenant, now)
        made = [(answer.id, tenant, template, version) for answer in answers if answer.created]
        if made:
            yield Statement(_MADE, made, many=True)
        yield from unsign()
        return answers
