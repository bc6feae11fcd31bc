"""Looking at templates, schedules, what became of their times, and what a job was made from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from functools import cached_property
from typing import Any

from holdfast.engine.ids import parse_id
from holdfast.engine.job import OURS
from holdfast.engine.names import Place
from holdfast.features.schedules.model import Fire, MadeFrom, Schedule, Template, version_of
from holdfast.stores.codecs import Record
from holdfast.stores.flow import Row, Steps, flow
from holdfast.stores.job_reads import Reader
from holdfast.stores.reader import at_most, beyond, within

TEMPLATE_COLUMNS = Record.columns(Template, "t.")
SCHEDULE_COLUMNS = Record.columns(Schedule, "s.")
# Live workers that say which kinds they run, or that run any.
ALIVE = "from {lease} l where l.ended_at is null and l.until > :now and"


class ScheduleReads(Reader):
    @cached_property
    def _template(self) -> Callable[[Row], Template]:
        return Record.decoder(Template, self.dialect.codec)

    @cached_property
    def _schedule(self) -> Callable[[Row], Schedule]:
        return Record.decoder(Schedule, self.dialect.codec)

    @flow(writes=False)
    def template(self, name: str, tenant: str, version: int | None = None) -> Steps[Template | None]:
        which = "" if version is None else " and t.version = :version"
        text = (
            f"select {TEMPLATE_COLUMNS} from {{template}} t"
            f" where t.name = :name and {within(tenant, 't.tenant')}{which}"
            " order by t.version desc limit 1"
        )
        rows = yield from self._ask(tenant, text, name=name, version=version)
        return self._template(rows[0]) if rows else None

    @flow(writes=False)
    def templates(self, tenant: str, after: Place | None = None, limit: int | None = None) -> Steps[list[Template]]:
        later, place = beyond(tenant, after, "t.tenant", "t.name")
        text = (
            f"select {TEMPLATE_COLUMNS} from {{template}} t where {within(tenant, 't.tenant')} and not t.removed"
            f" and {later} and not exists (select 1 from {{template}} n"
            " where n.tenant = t.tenant and n.name = t.name and n.version > t.version)"
            f" order by t.tenant, t.name{at_most(limit)}"
        )
        rows = yield from self._ask(tenant, text, **place)
        return [self._template(row) for row in rows]

    @flow(writes=False)
    def template_versions(
        self, name: str, tenant: str, after: Place | None = None, limit: int | None = None
    ) -> Steps[list[Template]]:
        older, place = "1 = 1", {}
        if after is not None:
            older = "(t.tenant > :after_tenant or t.tenant = :after_tenant and t.version < :after_version)"
            place = {"after_tenant": after.tenant, "after_version": version_of(after)}
        text = (
            f"select {TEMPLATE_COLUMNS} from {{template}} t where t.name = :name and {within(tenant, 't.tenant')}"
            f" and {older} order by t.tenant, t.version desc{at_most(limit)}"
        )
        rows = yield from self._ask(tenant, text, name=name, **place)
        return [self._template(row) for row in rows]

    @flow(writes=False)
    def made_from(self, job_id: str, tenant: str) -> Steps[MadeFrom | None]:
        text = (
            f"select {Record.columns(MadeFrom, 'm.')} from {{made_from}} m"
            f" where m.job_id = :id and {within(tenant, 'm.tenant')}"
        )
        rows = yield from self._ask(tenant, text, id=parse_id(job_id))
        return Record.decoder(MadeFrom, self.dialect.codec)(rows[0]) if rows else None

    @flow(writes=False)
    def schedule(self, name: str, tenant: str) -> Steps[Schedule | None]:
        text = (
            f"select {SCHEDULE_COLUMNS} from {{schedule}} s"
            f" where s.name = :name and s.state <> 'deleted' and {within(tenant, 's.tenant')}"
        )
        rows = yield from self._ask(tenant, text, name=name)
        return self._schedule(rows[0]) if rows else None

    @flow(writes=False)
    def schedules(
        self,
        tenant: str,
        state: str | None = None,
        kind: str | None = None,
        after: Place | None = None,
        limit: int | None = None,
    ) -> Steps[list[Schedule]]:
        later, place = beyond(tenant, after, "s.tenant", "s.name")
        conditions = [within(tenant, "s.tenant"), "s.state <> 'deleted'", later]
        if state is not None:
            conditions.append("s.state = :state")
        if kind is not None:
            conditions.append("s.kind = :kind")
        text = (
            f"select {SCHEDULE_COLUMNS} from {{schedule}} s where {' and '.join(conditions)}"
            f" order by s.tenant, s.name{at_most(limit)}"
        )
        rows = yield from self._ask(tenant, text, state=state, kind=kind, **place)
        return [self._schedule(row) for row in rows]

    @flow(writes=False)
    def declared_schedules(self, declared_by: str, tenant: str) -> Steps[list[Schedule]]:
        text = (
            f"select {SCHEDULE_COLUMNS} from {{schedule}} s"
            " where s.declared_by = :program and s.declared_by is not null"
            f" and {within(tenant, 's.tenant')} and s.state <> 'deleted' order by s.name"
        )
        rows = yield from self._ask(tenant, text, program=declared_by)
        return [self._schedule(row) for row in rows]

    @flow(writes=False)
    def fires(
        self, schedule_id: str, tenant: str, limit: int = 50, before: datetime | None = None
    ) -> Steps[list[Fire]]:
        earlier = "" if before is None else " and f.due_at < :before"
        text = (
            f"select {Record.columns(Fire, 'f.')} from {{fire}} f where f.schedule_id = :id"
            f" and {within(tenant, 'f.tenant')}{earlier} order by f.due_at desc, f.manual desc limit :limit"
        )
        moment = None if before is None else self.dialect.codec.moment(before)
        rows = yield from self._ask(tenant, text, id=parse_id(schedule_id), limit=limit, before=moment)
        decode = Record.decoder(Fire, self.dialect.codec)
        return [decode(row) for row in rows]

    @flow(writes=False)
    def due_schedules(
        self, kinds: Sequence[str], want: int, tenant: str, held: bool = False
    ) -> Steps[tuple[datetime, list[Schedule], frozenset[str]]]:
        """What another worker of ours that is alive has the handlers for is left to that one: it can check the
        arguments. Workers of other languages fire nothing. Answers the kinds besides that any of them runs."""
        codec, own = self.dialect.codec, within(tenant, "s.tenant")
        rows = yield from self._ask(tenant, "select p.now from {present} p")
        now: Any = rows[0][0]
        mine = self.dialect.has(":kinds", "s.kind")
        if held:
            text = (
                f"select {SCHEDULE_COLUMNS} from {{schedule}} s where s.problem = 'unknown_kind' and {mine}"
                f" and s.next_fire_at <= :now and s.state = 'active' and {own} order by s.next_fire_at limit :want"
            )
            rows = yield from self._ask(tenant, text, now=now, kinds=self.dialect.listed(kinds), want=want)
            if rows:
                return codec.time(now), [self._schedule(row) for row in rows], frozenset()
        # The order is what makes every planner walk the index, however few it thinks there are.
        look = (
            "select 1 from {schedule} s where s.attend_at <= :now and s.attend_at is not null"
            f" and {own} order by s.attend_at limit 1"
        )
        if not (yield self.dialect.read(look, now=now, tenant=tenant)):
            return codec.time(now), [], frozenset()
        named = self.dialect.has("l.kinds", "s.kind")
        text = (
            f"select {SCHEDULE_COLUMNS}, (select count(*) {ALIVE} (l.kinds is null or {named})) from {{schedule}} s"
            f" where s.attend_at <= :now and s.attend_at is not null and {own}"
            f" and ({mine} or not exists (select 1 {ALIVE} l.kinds is not null and l.holder like :ours and {named}))"
            " order by s.attend_at limit :want"
        )
        rows = yield from self._ask(tenant, text, now=now, kinds=self.dialect.listed(kinds), want=want, ours=OURS)
        found = [(self._schedule(row[:-1]), row[-1]) for row in rows]
        run = frozenset(schedule.kind for schedule, workers in found if workers)
        return codec.time(now), [schedule for schedule, _ in found], run
