"""Schedules and templates in the database: the ports with the shared reads, and PostgreSQL."""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Callable, Sequence
from datetime import datetime
from functools import cached_property
from typing import Any

from holdfast.engine.ids import parse_id
from holdfast.engine.job import WORKER_HOLDER_PATTERN, Enqueued, JobSpec
from holdfast.engine.names import PagePosition
from holdfast.features.schedules.model import (
    Decision,
    Firing,
    MadeFrom,
    Placed,
    Schedule,
    ScheduleRun,
    Template,
    TemplateDraft,
    version_of,
)
from holdfast.stores.codecs import Record
from holdfast.stores.flow import Flow, Row, Steps, flow
from holdfast.stores.job_reads import Reader
from holdfast.stores.postgres.base import Calls
from holdfast.stores.postgres.codec import enqueue_document, enqueued, job_document
from holdfast.stores.reader import at_most, beyond, within

TEMPLATE_COLUMNS = Record.columns(Template, "t.")
SCHEDULE_COLUMNS = Record.columns(Schedule, "s.")
# Live workers.
ALIVE = "from {lease} l where l.ended_at is null and l.until > :now and"


class ScheduleStore(Reader):
    @abstractmethod
    def add(self, schedule: Placed, actor: str, tenant: str) -> Flow[bool]:
        """False if the name is taken."""

    @abstractmethod
    def change(self, read: Schedule, becomes: Placed, state: str, actor: str, tenant: str) -> Flow[bool]:
        """Redefine, pause, resume or delete a schedule; False if it has changed since it was read."""

    @abstractmethod
    def declare(self, declared_by: str, names: Sequence[str], tenant: str) -> Flow[list[str]]:
        """Record which schedules a program declares; returns those that it no longer declares."""

    @abstractmethod
    def fire(self, decisions: Sequence[Decision], tenant: str) -> Flow[int]:
        """Apply the decisions whose schedules have not changed since; returns their number."""

    @abstractmethod
    def run(
        self, schedule_id: str, firing: Firing, anyway: bool, actor: str, tenant: str
    ) -> Flow[tuple[str | None, str | None, str | None]]:
        """Run a schedule now, in addition to its times. Returns the job's id, or the reason and the message of a
        refusal."""

    @cached_property
    def _schedule(self) -> Callable[[Row], Schedule]:
        return Record.decoder(Schedule, self.dialect.codec)

    @flow(writes=False)
    def get(self, name: str, tenant: str) -> Steps[Schedule | None]:
        text = (
            f"select {SCHEDULE_COLUMNS} from {{schedule}} s"
            f" where s.name = :name and s.state <> 'deleted' and {within(tenant, 's.tenant')}"
        )
        return (yield from self._record(Schedule, tenant, text, name=name))

    @flow(writes=False)
    def declared(self, declared_by: str, tenant: str) -> Steps[list[Schedule]]:
        text = (
            f"select {SCHEDULE_COLUMNS} from {{schedule}} s"
            " where s.declared_by = :program and s.declared_by is not null"
            f" and {within(tenant, 's.tenant')} and s.state <> 'deleted' order by s.name"
        )
        return (yield from self._records(Schedule, tenant, text, program=declared_by))

    @flow(writes=False)
    def fires(
        self, schedule_id: str, tenant: str, limit: int = 50, before: datetime | None = None
    ) -> Steps[list[ScheduleRun]]:
        """The results of its past times, newest first."""
        earlier = "" if before is None else " and f.due_at < :before"
        text = (
            f"select {Record.columns(ScheduleRun, 'f.')} from {{fire}} f where f.schedule_id = :id"
            f" and {within(tenant, 'f.tenant')}{earlier} order by f.due_at desc, f.manual desc limit :limit"
        )
        moment = None if before is None else self.dialect.codec.moment(before)
        return (
            yield from self._records(ScheduleRun, tenant, text, id=parse_id(schedule_id), limit=limit, before=moment)
        )

    @flow(writes=False)
    def due(
        self, kinds: Sequence[str], want: int, tenant: str, held: bool = False
    ) -> Steps[tuple[datetime, list[Schedule], frozenset[str]]]:
        """The time, the due schedules of these kinds and of kinds that no live Holdfast worker names, and the kinds
        among them that some worker handles. ``held`` first returns those of these kinds that no worker handled so far.

        Schedules whose handlers another live Holdfast worker has are left to that worker: it can check their arguments.
        Workers in other languages do not fire schedules, but count for the kinds that are handled.
        """
        codec, own = self.dialect.codec, within(tenant, "s.tenant")
        rows = yield from self._query(tenant, "select p.now from {present} p")
        now: Any = rows[0][0]
        mine = self.dialect.has(":kinds", "s.kind")
        if held:
            text = (
                f"select {SCHEDULE_COLUMNS} from {{schedule}} s where s.problem = 'unknown_kind' and {mine}"
                f" and s.next_fire_at <= :now and s.state = 'active' and {own} order by s.next_fire_at limit :want"
            )
            rows = yield from self._query(tenant, text, now=now, kinds=self.dialect.listed(kinds), want=want)
            if rows:
                return codec.time(now), [self._schedule(row) for row in rows], frozenset()
        # ORDER BY makes the planners use the index, whatever their row estimates are.
        any_due = (
            "select 1 from {schedule} s where s.attend_at <= :now and s.attend_at is not null"
            f" and {own} order by s.attend_at limit 1"
        )
        if not (yield self.dialect.read(any_due, now=now, tenant=tenant)):
            return codec.time(now), [], frozenset()
        named = self.dialect.has("l.kinds", "s.kind")
        text = (
            f"select {SCHEDULE_COLUMNS}, (select count(*) {ALIVE} (l.kinds is null or {named})) from {{schedule}} s"
            f" where s.attend_at <= :now and s.attend_at is not null and {own}"
            f" and ({mine} or not exists (select 1 {ALIVE} l.kinds is not null and l.holder like :ours and {named}))"
            " order by s.attend_at limit :want"
        )
        rows = yield from self._query(
            tenant, text, now=now, kinds=self.dialect.listed(kinds), want=want, ours=WORKER_HOLDER_PATTERN
        )
        due = [(self._schedule(row[:-1]), row[-1]) for row in rows]
        handled = frozenset(schedule.kind for schedule, workers in due if workers)
        return codec.time(now), [schedule for schedule, _ in due], handled

    @flow(writes=False)
    def list(
        self,
        tenant: str,
        state: str | None = None,
        kind: str | None = None,
        after: PagePosition | None = None,
        limit: int | None = None,
    ) -> Steps[list[Schedule]]:
        """Schedules by tenant and name."""
        later, cursor = beyond(tenant, after, "s.tenant", "s.name")
        conditions = [within(tenant, "s.tenant"), "s.state <> 'deleted'", later]
        if state is not None:
            conditions.append("s.state = :state")
        if kind is not None:
            conditions.append("s.kind = :kind")
        order = "s.tenant, s.name"
        text = (
            f"select {self.dialect.bounded(SCHEDULE_COLUMNS, order, 's.payload')}"
            f" from (select s.* from {{schedule}} s where {' and '.join(conditions)}"
            f" order by {order}{at_most(limit)}) s order by {order}"
        )
        return (yield from self._records(Schedule, tenant, text, state=state, kind=kind, **cursor))


class TemplateStore(Reader):
    @abstractmethod
    def remove(self, name: str, actor: str, tenant: str) -> Flow[bool]: ...

    @abstractmethod
    def enqueue(self, specs: Sequence[JobSpec], template: str, version: int, tenant: str) -> Flow[list[Enqueued]]: ...

    @abstractmethod
    def set(self, draft: TemplateDraft, actor: str, tenant: str) -> Flow[Template | None]:
        """Add a version, unless it equals the newest one; None if the template is of another kind."""

    @flow(writes=False)
    def get(self, name: str, tenant: str, version: int | None = None) -> Steps[Template | None]:
        """This version, or the newest one, which may be a removal."""
        which = "" if version is None else " and t.version = :version"
        text = (
            f"select {TEMPLATE_COLUMNS} from {{template}} t"
            f" where t.name = :name and {within(tenant, 't.tenant')}{which}"
            " order by t.version desc limit 1"
        )
        return (yield from self._record(Template, tenant, text, name=name, version=version))

    @flow(writes=False)
    def versions(
        self, name: str, tenant: str, after: PagePosition | None = None, limit: int | None = None
    ) -> Steps[list[Template]]:
        """Versions by tenant, newest first. ``after`` has the number of a version as its name."""
        older, cursor = "1 = 1", {}
        if after is not None:
            older = "(t.tenant > :after_tenant or t.tenant = :after_tenant and t.version < :after_version)"
            cursor = {"after_tenant": after.tenant, "after_version": version_of(after)}
        order = "t.tenant, t.version desc"
        text = (
            f"select {self.dialect.bounded(TEMPLATE_COLUMNS, order, 't.payload')} from (select t.* from {{template}} t"
            f" where t.name = :name and {within(tenant, 't.tenant')} and {older} order by {order}{at_most(limit)}) t"
            f" order by {order}"
        )
        return (yield from self._records(Template, tenant, text, name=name, **cursor))

    @flow(writes=False)
    def made_from(self, job_id: str, tenant: str) -> Steps[MadeFrom | None]:
        text = (
            f"select {Record.columns(MadeFrom, 'm.')} from {{made_from}} m"
            f" where m.job_id = :id and {within(tenant, 'm.tenant')}"
        )
        return (yield from self._record(MadeFrom, tenant, text, id=parse_id(job_id)))

    @flow(writes=False)
    def scheduled_at(self, job_id: str, tenant: str) -> Steps[datetime | None]:
        """The time of the schedule that created this job, or the job that started its workflow."""
        text = (
            "select m.due_at from {made_from} m where m.due_at is not null and m.job_id in (select :id union all"
            " select w.parent_id from {node} n join {workflow} w on w.id = n.workflow_id where n.job_id = :id"
            " union all select w.parent_id from {callback} c join {workflow} w on w.id = c.workflow_id"
            f" where c.job_id = :id) and {within(tenant, 'm.tenant')}"
        )
        rows = yield from self._query(tenant, text, id=parse_id(job_id))
        return self.dialect.codec.time(rows[0][0]) if rows else None

    @flow(writes=False)
    def list(self, tenant: str, after: PagePosition | None = None, limit: int | None = None) -> Steps[list[Template]]:
        """The newest version of each template that was not removed, by tenant and name."""
        later, cursor = beyond(tenant, after, "t.tenant", "t.name")
        text = (
            f"select {self.dialect.bounded(TEMPLATE_COLUMNS, 't.tenant, t.name', 't.payload')} from"
            f" (select t.* from {{template}} t where {within(tenant, 't.tenant')} and not t.removed"
            f" and {later} and not exists (select 1 from {{template}} n"
            " where n.tenant = t.tenant and n.name = t.name and n.version > t.version)"
            f" order by t.tenant, t.name{at_most(limit)}) t order by t.tenant, t.name"
        )
        return (yield from self._records(Template, tenant, text, **cursor))


class PostgresSchedules(Calls, ScheduleStore):
    @flow(single=True)
    def add(self, schedule: Placed, actor: str, tenant: str) -> Steps[bool]:
        definition = _definition(schedule, schedule.state, id=schedule.id, name=schedule.draft.name)
        return (yield from self._flag("add_schedule", "%s::json, %s, %s", definition, actor, tenant))

    @flow(single=True)
    def change(self, read: Schedule, becomes: Placed, state: str, actor: str, tenant: str) -> Steps[bool]:
        params = (read.id, read.revision, _definition(becomes, state), actor, tenant)
        return (yield from self._flag("change_schedule", "%s, %s, %s::json, %s, %s", *params))

    @flow(single=True)
    def declare(self, declared_by: str, names: Sequence[str], tenant: str) -> Steps[list[str]]:
        rows = yield self._call("declare_schedules", "%s, %s::text[], %s", declared_by, list(names), tenant)
        return sorted(str(row[0]) for row in rows)

    @flow(single=True)
    def fire(self, decisions: Sequence[Decision], tenant: str) -> Steps[int]:
        document = "[" + ",".join(map(_decision, decisions)) + "]"
        rows = yield self._call("fire_schedules", "%s::json, %s", document, tenant)
        return len(rows)

    @flow(single=True)
    def run(
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


class PostgresTemplates(Calls, TemplateStore):
    @flow(single=True)
    def remove(self, name: str, actor: str, tenant: str) -> Steps[bool]:
        rows = yield self._call("put_template", "%s, null, null, null, true, %s, %s", name, actor, tenant)
        return rows[0][1] is None

    @flow(single=True)
    def enqueue(self, specs: Sequence[JobSpec], template: str, version: int, tenant: str) -> Steps[list[Enqueued]]:
        document = enqueue_document(specs)
        rows = yield self._call("enqueue_made", "%s::json, %s, %s, %s", document, template, version, tenant)
        return enqueued(rows)

    @flow()
    def set(self, draft: TemplateDraft, actor: str, tenant: str) -> Steps[Template | None]:
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
        return (yield from self.get(draft.name, tenant).start())


def _definition(placed: Placed, state: str, **identity: str) -> str:
    """The columns as one JSON text. The payload is JSON already and is inserted unchanged."""
    columns = {**identity, **placed.columns(state)}
    payload = columns.pop("payload")
    return f'{{"payload":{payload},{json.dumps(columns, default=datetime.isoformat)[1:]}'


def _decision(decision: Decision) -> str:
    read = decision.schedule
    columns = {
        "schedule": read.id,
        "revision": read.revision,
        "expected": read.next_fire_at,
        "next_fire_at": decision.next_fire_at,
        "attend_at": decision.attend_at,
        "problem": decision.problem,
    }
    firings = ",".join(map(_firing, decision.firings))
    spare = "" if decision.spare is None else f',"spare":{_firing(decision.spare)}'
    return f'{json.dumps(columns, default=datetime.isoformat)[:-1]}{spare},"firings":[{firings}]}}'


def _firing(firing: Firing) -> str:
    columns = {
        "due_at": firing.due_at,
        "action": firing.action,
        "template_version": firing.template_version,
        "count": firing.count,
        "since_at": firing.since_at,
        "code": firing.code,
        "message": firing.message,
    }
    job = "" if firing.job is None else f',"job":{job_document(firing.job)}'
    return f"{json.dumps(columns, default=datetime.isoformat)[:-1]}{job}}}"
