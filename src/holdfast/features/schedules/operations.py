"""``app.schedules``: add, edit, pause, resume, run, preview, history, remove."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Annotated, Any, Literal, Unpack

from holdfast.engine.declared import Help, Most, http
from holdfast.engine.job import JobSpec
from holdfast.engine.names import NamedKind, Paging, check_name, kind_name
from holdfast.engine.operation import awaited, operation
from holdfast.errors import Conflict, InvalidSetting, NotFound, Refused
from holdfast.features.payloads.model import PayloadRule, shown_payload
from holdfast.features.schedules.model import (
    Firing,
    Placed,
    Schedule,
    ScheduleChanges,
    ScheduleDraft,
    ScheduleOptions,
    ScheduleRun,
    Template,
    When,
    changed,
    draft_of,
    job_arguments,
    redefined,
    with_same_times,
)
from holdfast.features.schedules.recurrence import Coming, preview
from holdfast.stores.flow import Steps, read_together, transaction
from holdfast.stores.namespace import StoreNamespace
from holdfast.stores.port import Caller
from holdfast.stores.requests import new_id

Make = Callable[[str, Any, dict[str, Any]], JobSpec]
"""Makes a job from a kind, a payload and options; raises if the payload does not fit a known kind."""
TRIES = 5  # a change is repeated if another process changed the schedule first

Name = Annotated[str, Help("The schedule's name.", "NAME")]
ScheduleState = Literal["active", "paused", "ended"]

# Inside the class, ``list`` is an operation.
_Schedules = list[Schedule]
_Fires = list[ScheduleRun]
_Times = list[Coming]


class Schedules(StoreNamespace):
    """Schedules: jobs that are created at given times."""

    def __init__(self, caller: Caller, make: Make | None = None) -> None:
        """``make`` is for the operations that create jobs or check them."""
        super().__init__(caller)
        self._make = make

    @operation
    @http(
        "POST /schedules",
        "operate",
        tenant="one",
        status=201,
        example={"name": "nightly", "timing": "0 3 * * *", "tz": "Europe/Paris", "kind": "report"},
    )
    @transaction()
    def add(
        self,
        /,
        name: Name,
        timing: Annotated[
            When,
            Help(
                '"0 9 * * MON-FRI", "@daily", "every 90s", "at 2027-01-31 09:00".',
                "WHEN",
                longest=200,
                wire=str | float,
            ),
        ],
        **definition: Unpack[ScheduleOptions],
    ) -> Steps[Schedule]:
        """Add a schedule for a kind or a template. A name that is taken is refused.

        ``app.schedules.add("nightly", "0 3 * * *", kind="report", tz="Europe/Paris", payload={…})``. A workflow that
        was declared with ``@app.workflow`` is a kind. ``jitter`` spreads the load.
        """
        store, tenant = self._store, self._tenant
        draft, template = yield from self._drafted(name, timing, definition)
        now = yield from store.clock.now().start()
        placed = Placed.at(new_id(), draft, now)
        self._firing(draft, template, placed.next_fire_at or now)  # refuse an invalid job now, not when it is due
        if not (yield from store.schedules.add(placed, self._actor, tenant).start()):
            raise Conflict(
                f"schedule {name} already exists", code="schedule_exists", fix="Edit it, or choose another name."
            )
        return (yield from self._redacted((yield from self._stored(name))))

    aadd = awaited(add)

    @operation
    @http("PATCH /schedules/{name}", "operate", tenant="one", example={"timing": "30 4 * * *", "queue": None})
    @transaction()
    def edit(self, /, name: Name, **changes: Unpack[ScheduleChanges]) -> Steps[Schedule]:
        """Change the given settings of a schedule; null (None) removes an option. New times count from now; unchanged
        ones keep the next time."""
        for _ in range(TRIES):
            read = yield from self._stored(name)
            draft, template = yield from self._drafted(
                name, changes.get("timing") or read.timing, changed(read, changes)
            )
            now = yield from self._store.clock.now().start()
            placed = redefined(read, draft, now)
            self._firing(draft, template, placed.next_fire_at or now)
            state = "active" if read.state == "ended" else read.state
            if (yield from self._change(read, placed, state)):
                return (yield from self._redacted((yield from self._stored(name))))
        raise _busy(name)

    aedit = awaited(edit)

    @operation
    @http("POST /schedules/{name}/pause", "operate", tenant="one")
    @transaction()
    def pause(self, name: Name) -> Steps[Schedule]:
        """Pause a schedule. Times that pass meanwhile are skipped and do not count as missed."""
        return (yield from self._set_state(name, "paused"))

    apause = awaited(pause)

    @operation
    @http("POST /schedules/{name}/resume", "operate", tenant="one")
    @transaction()
    def resume(self, name: Name) -> Steps[Schedule]:
        """Resume a schedule, from its next time."""
        return (yield from self._set_state(name, "active"))

    aresume = awaited(resume)

    @operation
    @http("DELETE /schedules/{name}", "operate", tenant="one")
    @transaction()
    def remove(self, name: Name) -> Steps[None]:
        """Remove a schedule. Its jobs and history stay; its name can be used again."""
        yield from self._set_state(name, "deleted")

    aremove = awaited(remove)

    @operation
    @http("POST /schedules/{name}/run", "operate", tenant="one", status=201, result="job_id", example={"anyway": True})
    @transaction(notifies=True)
    def run(
        self,
        name: Name,
        *,
        anyway: Annotated[bool, Help("Run even if a job of the schedule is still running.")] = False,
    ) -> Steps[str]:
        """Run a schedule now, in addition to its times. The result is the job's id. A schedule that does not allow
        overlap is refused while a job of it runs, unless ``anyway``."""
        store, tenant = self._store, self._tenant
        read = yield from self._stored(name)
        template = yield from self._template(read.template)
        now = yield from store.clock.now().start()
        firing = self._firing(draft_of(read), template, now)
        job_id, reason, detail = yield from store.schedules.run(read.id, firing, anyway, self._actor, tenant).start()
        if job_id is None:
            why = "a job of it is still running" if reason == "schedule_running" else detail
            raise Refused(f"schedule {name} was not run: {why or reason}", code=reason)
        return job_id

    arun = awaited(run)

    @operation
    @http("GET /schedules/{name}", "read", name="show_schedule")
    @transaction(writes=False)
    def get(self, name: Name) -> Steps[Schedule]:
        """Show a schedule: its job and its times."""
        store, tenant = self._store, self._tenant
        schedule, rules = yield from read_together(
            store.schedules.get(check_name(name, "schedule"), tenant).start(),
            store.payload_rules.list(tenant).start(),
        )
        if schedule is None:
            raise _not_found(name)
        return _redacted(rules, schedule)

    aget = awaited(get)

    @operation
    @http("GET /schedules", "read", large=True)
    @transaction(writes=False)
    def list(
        self,
        *,
        state: Annotated[
            str | None,
            Help("Only schedules in this state: active, paused, ended.", "NAME", wire=ScheduleState | None),
        ] = None,
        kind: Annotated[str | NamedKind | None, Help("Only schedules of this kind.")] = None,
        **page: Unpack[Paging],
    ) -> Steps[_Schedules]:
        """List schedules by name, with their next times and problems."""
        store, tenant = self._store, self._tenant
        schedules, rules = yield from read_together(
            store.schedules.list(tenant, state, kind_name(kind), **page).start(),
            store.payload_rules.list(tenant).start(),
        )
        return [_redacted(rules, schedule) for schedule in schedules]

    alist = awaited(list)

    @operation
    @http("GET /schedules/{name}/history", "read", name="schedule_history", page="due_at")
    @transaction(writes=False)
    def history(
        self,
        name: Name,
        *,
        limit: Most = 50,
        before: Annotated[datetime | None, Help("Only times before this one: 2027-01-31T09:00Z.")] = None,
    ) -> Steps[_Fires]:
        """Show a schedule's past times, newest first: fired, skipped, waiting, missed or failed."""
        read = yield from self._stored(name)
        return (yield from self._store.schedules.fires(read.id, self._tenant, limit, before).start())

    ahistory = awaited(history)

    @operation
    @http("GET /schedules/{name}/preview", "read")
    @transaction(writes=False)
    def preview(
        self, name: Name, count: Annotated[int, Help("Number of times to show.", low=1, high=100)] = 10
    ) -> Steps[_Times]:
        """Show the next times in UTC and in the schedule's time zone, with a warning where daylight saving time affects
        one."""
        read = yield from self._stored(name)
        now = yield from self._store.clock.now().start()
        return preview(read.timed, now, read.anchor_at, count)

    apreview = awaited(preview)

    def _set_state(self, name: str, state: str) -> Steps[Schedule]:
        for _ in range(TRIES):
            read = yield from self._stored(name)
            if read.state == state or (read.state, state) == ("ended", "paused"):
                return (yield from self._redacted(read))
            now = yield from self._store.clock.now().start()
            draft = draft_of(read)
            placed = (
                Placed.at(read.id, draft, now, read.anchor_at) if state == "active" else with_same_times(read, draft)
            )
            if (yield from self._change(read, placed.declared_as(read), state)):
                return (yield from self._redacted(read if state == "deleted" else (yield from self._stored(name))))
        raise _busy(name)

    def _change(self, read: Schedule, placed: Placed, state: str) -> Steps[bool]:
        change = self._store.schedules.change(read, placed, state, self._actor, self._tenant)
        return (yield from change.start())

    def _redacted(self, schedule: Schedule) -> Steps[Schedule]:
        """The schedule without the payload of a restricted kind: only its jobs see that."""
        rules = yield from self._store.payload_rules.list(self._tenant).start()
        return _redacted(rules, schedule)

    def _stored(self, name: str) -> Steps[Schedule]:
        schedule = yield from self._store.schedules.get(check_name(name, "schedule"), self._tenant).start()
        if schedule is None:
            raise _not_found(name)
        return schedule

    def _template(self, name: str | None) -> Steps[Template | None]:
        if name is None:
            return None
        template = yield from self._store.templates.get(name, self._tenant).start()
        if template is None or template.removed:
            raise NotFound(f"no template {name} in this tenant", code="template_not_found")
        return template

    def _drafted(
        self, name: str, timing: When, definition: Mapping[str, Any]
    ) -> Steps[tuple[ScheduleDraft, Template | None]]:
        template = yield from self._template(definition.get("template"))
        kind = kind_name(definition.get("kind"))
        if (kind is None) == (template is None):
            raise InvalidSetting(
                "a schedule needs a kind or a template",
                code="conflicting_options",
                fix="Pass kind=…, also for a workflow: declare it with @app.workflow and pass its name.",
            )
        options = {option: value for option, value in definition.items() if option not in ("kind", "timing")}
        return ScheduleDraft.of(name, timing, kind=kind if template is None else template.kind, **options), template

    def _firing(self, draft: ScheduleDraft, template: Template | None, due: datetime) -> Firing:
        payload, options = job_arguments(template, json.loads(draft.payload), draft.options, due)
        signed = {**options, "tenant": self._tenant, "enqueued_by": f"schedule {draft.name}"}
        assert self._make is not None
        spec = self._make(draft.kind, payload, signed)
        return Firing(due, "fire", spec, None if template is None else template.version)


def _redacted(rules: Sequence[PayloadRule], schedule: Schedule) -> Schedule:
    if not rules:
        return schedule
    return replace(schedule, payload=shown_payload(rules, schedule.tenant, schedule.kind, schedule.payload))


def _busy(name: str) -> Conflict:
    return Conflict(f"schedule {name} is being changed by another caller", code="schedule_changed")


def _not_found(name: str) -> NotFound:
    return NotFound(
        f"no schedule {name} in this tenant",
        code="schedule_not_found",
        fix="See holdfast schedules list. A schedule declared in code is stored when the first worker starts.",
    )
