"""``app.schedules``: add, edit, pause, resume, run, preview, history, remove."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, Unpack

from holdfast.engine.job import JobSpec
from holdfast.engine.names import NamedKind, Paging, check_name, kind_name
from holdfast.engine.operation import Program, awaited, operation
from holdfast.errors import Conflict, InvalidSetting, NotFound, Refused
from holdfast.features.payloads.model import PayloadRule, shown_payload
from holdfast.features.schedules.model import (
    Firing,
    Placed,
    Schedule,
    ScheduleDraft,
    ScheduleRun,
    Template,
    draft_of,
    job_arguments,
    redefined,
    with_same_times,
)
from holdfast.features.schedules.recurrence import Coming, preview
from holdfast.stores.flow import Steps, flow, read_together, run
from holdfast.stores.namespace import StoreNamespace
from holdfast.stores.port import Caller

Make = Callable[[str, Any, dict[str, Any]], JobSpec]
"""Makes a job from a kind, a payload and options; raises if the payload does not fit a known kind."""
TRIES = 5  # a change is repeated if another process changed the schedule first

# Inside the class, ``list`` is an operation.
_Schedules = list[Schedule]
_Fires = list[ScheduleRun]
_Times = list[Coming]


class Schedules(StoreNamespace):
    """Schedules: jobs that are created at given times."""

    def __init__(self, caller: Caller, make: Make, new_id: Callable[[], str]) -> None:
        super().__init__(caller)
        self._make = make
        self._new_id = new_id

    @operation
    def add(self, /, name: str, timing: str | float | timedelta, **definition: Any) -> Program[Schedule]:
        """Add a schedule: ``app.schedules.add("nightly", "0 3 * * *", kind="report", tz="Europe/Paris", payload={…})``.

        ``kind`` or ``template`` names the job, ``payload`` has its arguments. A workflow that was declared with
        ``@app.workflow`` is a kind. ``missed`` is skip, once or all; ``overlap`` is allow, skip or queue; ``jitter``
        spreads the load; other options are those of a template. A name that is taken is refused.
        """
        return (yield from run(self._add(name, timing, definition)))

    aadd = awaited(add)

    @operation
    def edit(self, /, name: str, **changes: Any) -> Program[Schedule]:
        """Change the given options, also ``timing`` and ``tz``. A new timing counts from now on; otherwise the next
        time stays."""
        return (yield from run(self._edit(name, changes)))

    aedit = awaited(edit)

    @operation
    def pause(self, name: str) -> Program[Schedule]:
        """Do not fire until it is resumed. Times that pass meanwhile do not count as missed."""
        return (yield from run(self._set_state(name, "paused")))

    apause = awaited(pause)

    @operation
    def resume(self, name: str) -> Program[Schedule]:
        """Fire again."""
        return (yield from run(self._set_state(name, "active")))

    aresume = awaited(resume)

    @operation
    def remove(self, name: str) -> Program[None]:
        """Remove a schedule and free its name. Jobs and history stay."""
        yield from run(self._set_state(name, "deleted"))

    aremove = awaited(remove)

    @operation
    def run(self, name: str, *, anyway: bool = False) -> Program[str]:
        """Run it now, in addition to its times. Returns the job's id. A schedule that does not allow overlap refuses
        while a job of it runs, unless ``anyway``."""
        return (yield from run(self._run(name, anyway)))

    arun = awaited(run)

    @operation
    def get(self, name: str) -> Program[Schedule]:
        """The schedule, or ``NotFound``."""
        return (yield from run(self._get(name)))

    aget = awaited(get)

    @operation
    def list(
        self, *, state: str | None = None, kind: str | NamedKind | None = None, **page: Unpack[Paging]
    ) -> Program[_Schedules]:
        """Schedules by name."""
        return (yield from run(self._listed(state, kind_name(kind), page)))

    alist = awaited(list)

    @operation
    def history(self, name: str, *, limit: int = 50, before: datetime | None = None) -> Program[_Fires]:
        """The results of its past times, newest first."""
        return (yield from run(self._history(name, limit, before)))

    ahistory = awaited(history)

    @operation
    def preview(self, name: str, count: int = 10) -> Program[_Times]:
        """Its next times in its time zone, with a warning where a clock change affects one."""
        return (yield from run(self._preview(name, count)))

    apreview = awaited(preview)

    # --- flows ---

    @flow()
    def _add(self, name: str, timing: str | float | timedelta, definition: Mapping[str, Any]) -> Steps[Schedule]:
        store, tenant = self._store, self._tenant
        draft, template = yield from self._drafted(name, timing, definition)
        now = yield from store.clock.now().start()
        placed = Placed.at(self._new_id(), draft, now)
        self._firing(draft, template, placed.next_fire_at or now)  # refuse an invalid job now, not when it is due
        if not (yield from store.schedules.add(placed, self._actor, tenant).start()):
            raise Conflict(
                f"schedule {name} already exists", code="schedule_exists", fix="Edit it, or choose another name."
            )
        return (yield from self._redacted((yield from self._stored(name))))

    @flow()
    def _edit(self, name: str, changes: Mapping[str, Any]) -> Steps[Schedule]:
        for _ in range(TRIES):
            read = yield from self._stored(name)
            draft, template = yield from self._drafted(name, changes.get("timing", read.timing), changed(read, changes))
            now = yield from self._store.clock.now().start()
            placed = redefined(read, draft, now)
            self._firing(draft, template, placed.next_fire_at or now)
            state = "active" if read.state == "ended" else read.state
            if (yield from self._change(read, placed, state)):
                return (yield from self._redacted((yield from self._stored(name))))
        raise _busy(name)

    @flow()
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

    @flow(notifies=True)
    def _run(self, name: str, anyway: bool) -> Steps[str]:
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

    @flow(writes=False)
    def _history(self, name: str, limit: int, before: datetime | None) -> Steps[_Fires]:
        read = yield from self._stored(name)
        return (yield from self._store.schedules.fires(read.id, self._tenant, limit, before).start())

    @flow(writes=False)
    def _preview(self, name: str, count: int) -> Steps[_Times]:
        read = yield from self._stored(name)
        now = yield from self._store.clock.now().start()
        return preview(read.timed, now, read.anchor_at, count)

    @flow(writes=False)
    def _get(self, name: str) -> Steps[Schedule]:
        store, tenant = self._store, self._tenant
        schedule, rules = yield from read_together(
            store.schedules.get(check_name(name, "schedule"), tenant).start(),
            store.payload_rules.list(tenant).start(),
        )
        if schedule is None:
            raise _not_found(name)
        return _redacted(rules, schedule)

    @flow(writes=False)
    def _listed(self, state: str | None, kind: str | None, page: Paging) -> Steps[_Schedules]:
        store, tenant = self._store, self._tenant
        schedules, rules = yield from read_together(
            store.schedules.list(tenant, state, kind, **page).start(), store.payload_rules.list(tenant).start()
        )
        return [_redacted(rules, schedule) for schedule in schedules]

    # --- parts ---

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
        self, name: str, timing: str | float | timedelta, definition: Mapping[str, Any]
    ) -> Steps[tuple[ScheduleDraft, Template | None]]:
        template = yield from self._template(definition.get("template"))
        kind = kind_name(definition.get("kind"))
        if (kind is None) == (template is None):
            raise InvalidSetting(
                "a schedule needs a kind or a template",
                code="conflicting_options",
                fix="Pass kind=…, also for a workflow: declare it with @app.workflow and pass its name.",
            )
        parts = {name: definition[name] for name in _PARTS if name in definition}
        options = {name: value for name, value in definition.items() if name not in (*_PARTS, "timing")}
        parts["kind"] = template.kind if template is not None else kind
        return ScheduleDraft.of(name, timing, options=options, **parts), template

    def _firing(self, draft: ScheduleDraft, template: Template | None, due: datetime) -> Firing:
        payload, options = job_arguments(template, json.loads(draft.payload), draft.options, due)
        signed = {**options, "tenant": self._tenant, "enqueued_by": f"schedule {draft.name}"}
        spec = self._make(draft.kind, payload, signed)
        return Firing(due, "fire", spec, None if template is None else template.version)


_PARTS = ("kind", "template", "tz", "payload", "missed", "overlap", "jitter")


def changed(read: Schedule, changes: Mapping[str, Any]) -> dict[str, Any]:
    """The definition of a schedule with these changes. None removes an option."""
    own: dict[str, Any] = {
        "tz": read.zone,
        "payload": read.payload,
        "missed": read.missed,
        "overlap": read.overlap,
        "jitter": read.jitter,
        **({"kind": read.kind} if read.template is None else {"template": read.template}),
    }
    if "kind" in changes or "template" in changes:
        own = {name: value for name, value in own.items() if name not in ("kind", "template")}
    return {**read.options, **own, **changes}


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
