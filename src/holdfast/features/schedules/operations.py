"""``app.schedules``: add, edit, pause, resume, run, preview, history, remove."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, Unpack

from holdfast.engine.job import JobSpec
from holdfast.engine.names import Paging, check_name
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
    drafted,
    moved,
    together,
    unmoved,
)
from holdfast.features.schedules.recurrence import Coming, preview
from holdfast.stores.flow import Steps, flow, read_together, run
from holdfast.stores.namespace import StoreNamespace
from holdfast.stores.port import Caller

Make = Callable[[str, Any, dict[str, Any]], JobSpec]
"""Makes a job of a kind, a payload and options; refuses what does not fit a kind it knows."""
TRIES = 5  # of a change that somebody else's came before

# Inside the class the word is an operation.
_Schedules = list[Schedule]
_Fires = list[ScheduleRun]
_Times = list[Coming]


class Schedules(StoreNamespace):
    """When jobs are made without a caller."""

    def __init__(self, caller: Caller, make: Make, new_id: Callable[[], str]) -> None:
        super().__init__(caller)
        self._make = make
        self._new_id = new_id

    @operation
    def add(self, /, name: str, timing: str, **definition: Any) -> Program[Schedule]:
        """``app.schedules.add("nightly", "0 3 * * *", kind="report", tz="Europe/Paris", payload={…})``.

        ``kind`` or ``template`` says what is made, ``payload`` with which arguments; a workflow that was declared with
        ``@app.workflow`` is a kind. ``missed`` is skip, once or all;
        ``overlap`` is allow, skip or queue; ``jitter`` spreads the load; other options are those of a template. A name
        that is taken is refused.
        """
        return (yield from run(self._add(name, timing, definition)))

    aadd = awaited(add)

    @operation
    def edit(self, /, name: str, **changes: Any) -> Program[Schedule]:
        """Change the given options, also ``timing`` and ``tz``. With another timing the next time is computed from now
        on; otherwise it stays."""
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
    def list(self, *, state: str | None = None, kind: str | None = None, **page: Unpack[Paging]) -> Program[_Schedules]:
        """Schedules by name."""
        return (yield from run(self._listed(state, kind, page)))

    alist = awaited(list)

    @operation
    def history(self, name: str, *, limit: int = 50, before: datetime | None = None) -> Program[_Fires]:
        """What happened at its past times, newest first."""
        return (yield from run(self._history(name, limit, before)))

    ahistory = awaited(history)

    @operation
    def preview(self, name: str, count: int = 10) -> Program[_Times]:
        """Its next times in its time zone, with a warning where a clock change affects one."""
        return (yield from run(self._preview(name, count)))

    apreview = awaited(preview)

    # --- flows ---

    @flow()
    def _add(self, name: str, timing: str, definition: Mapping[str, Any]) -> Steps[Schedule]:
        store, tenant = self._store, self._tenant
        draft, template = yield from self._drafted(name, timing, definition)
        now = yield from store.clock.now().start()
        placed = Placed.at(self._new_id(), draft, now)
        self._firing(draft, template, placed.next_fire_at or now)  # refused now rather than when it fires
        if not (yield from store.schedules.add(placed, self._actor, tenant).start()):
            raise Conflict(
                f"schedule {name} already exists", code="schedule_exists", fix="Edit it, or choose another name."
            )
        return (yield from self._shown((yield from self._found(name))))

    @flow()
    def _edit(self, name: str, changes: Mapping[str, Any]) -> Steps[Schedule]:
        for _ in range(TRIES):
            read = yield from self._found(name)
            draft, template = yield from self._drafted(name, changes.get("timing", read.timing), changed(read, changes))
            now = yield from self._store.clock.now().start()
            placed = moved(read, draft, now)
            self._firing(draft, template, placed.next_fire_at or now)
            state = "active" if read.state == "ended" else read.state
            if (yield from self._change(read, placed, state)):
                return (yield from self._shown((yield from self._found(name))))
        raise _busy(name)

    @flow()
    def _set_state(self, name: str, state: str) -> Steps[Schedule]:
        for _ in range(TRIES):
            read = yield from self._found(name)
            if read.state == state or (read.state, state) == ("ended", "paused"):
                return (yield from self._shown(read))
            now = yield from self._store.clock.now().start()
            draft = drafted(read)
            placed = Placed.at(read.id, draft, now, read.anchor_at) if state == "active" else unmoved(read, draft)
            if (yield from self._change(read, placed.declared_as(read), state)):
                return (yield from self._shown(read if state == "deleted" else (yield from self._found(name))))
        raise _busy(name)

    def _change(self, read: Schedule, placed: Placed, state: str) -> Steps[bool]:
        change = self._store.schedules.change(read, placed, state, self._actor, self._tenant)
        return (yield from change.start())

    @flow(tells=True)
    def _run(self, name: str, anyway: bool) -> Steps[str]:
        store, tenant = self._store, self._tenant
        read = yield from self._found(name)
        template = yield from self._template(read.template)
        now = yield from store.clock.now().start()
        firing = self._firing(drafted(read), template, now)
        job_id, reason, detail = yield from store.schedules.run(read.id, firing, anyway, self._actor, tenant).start()
        if job_id is None:
            said = "a job of it is still running" if reason == "schedule_running" else detail
            raise Refused(f"schedule {name} was not run: {said or reason}", code=reason)
        return job_id

    @flow(writes=False)
    def _history(self, name: str, limit: int, before: datetime | None) -> Steps[_Fires]:
        read = yield from self._found(name)
        return (yield from self._store.schedules.fires(read.id, self._tenant, limit, before).start())

    @flow(writes=False)
    def _preview(self, name: str, count: int) -> Steps[_Times]:
        read = yield from self._found(name)
        now = yield from self._store.clock.now().start()
        return preview(read.timed, now, read.anchor_at, count)

    @flow(writes=False)
    def _get(self, name: str) -> Steps[Schedule]:
        store, tenant = self._store, self._tenant
        found, rules = yield from read_together(
            store.schedules.get(_named(name), tenant).start(), store.payload_rules.list(tenant).start()
        )
        if found is None:
            raise _missing(name)
        return _without(rules, found)

    @flow(writes=False)
    def _listed(self, state: str | None, kind: str | None, page: Paging) -> Steps[_Schedules]:
        store, tenant = self._store, self._tenant
        found, rules = yield from read_together(
            store.schedules.list(tenant, state, kind, **page).start(), store.payload_rules.list(tenant).start()
        )
        return [_without(rules, each) for each in found]

    # --- parts ---

    def _shown(self, found: Schedule) -> Steps[Schedule]:
        """Without the payload of a restricted kind (rule 24): it is for the jobs that are made."""
        rules = yield from self._store.payload_rules.list(self._tenant).start()
        return _without(rules, found)

    def _found(self, name: str) -> Steps[Schedule]:
        found = yield from self._store.schedules.get(_named(name), self._tenant).start()
        if found is None:
            raise _missing(name)
        return found

    def _template(self, name: str | None) -> Steps[Template | None]:
        if name is None:
            return None
        found = yield from self._store.templates.get(name, self._tenant).start()
        if found is None or found.removed:
            raise NotFound(f"no template {name} in this tenant", code="template_not_found")
        return found

    def _drafted(
        self, name: str, timing: str, definition: Mapping[str, Any]
    ) -> Steps[tuple[ScheduleDraft, Template | None]]:
        template = yield from self._template(definition.get("template"))
        kind = definition.get("kind")
        kind = getattr(kind, "name", kind)  # of a declared one
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
        payload, options = together(template, json.loads(draft.payload), draft.options, due)
        signed = {**options, "tenant": self._tenant, "enqueued_by": f"schedule {draft.name}"}
        spec = self._make(draft.kind, payload, signed)
        return Firing(due, "fire", spec, None if template is None else template.version)


_PARTS = ("kind", "template", "tz", "payload", "missed", "overlap", "jitter")


def changed(read: Schedule, changes: Mapping[str, Any]) -> dict[str, Any]:
    """The definition that a schedule has with these changes. An option that is None is taken away."""
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


def _without(rules: Sequence[PayloadRule], found: Schedule) -> Schedule:
    return replace(found, payload=shown_payload(rules, found.tenant, found.kind, found.payload)) if rules else found


def _busy(name: str) -> Conflict:
    return Conflict(f"schedule {name} is being changed by another caller", code="schedule_changed")


def _named(name: str) -> str:
    return check_name(name, "schedule")


def _missing(name: str) -> NotFound:
    return NotFound(f"no schedule {name} in this tenant", code="schedule_not_found")
