"""The maintenance task of every worker that fires schedules, and syncs those that its code declares.

There is no leader: any number of processes may run it. Each reads the due schedules, decides in Python, and passes the
decisions to the store, which applies only those whose schedule has not changed since.
"""

from __future__ import annotations

import dataclasses
import json
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from holdfast.engine.job import JobSpec
from holdfast.errors import HoldfastError, InvalidSetting
from holdfast.features.limits.model import Pause
from holdfast.features.payloads.model import NO_RULE, PayloadRule, effective
from holdfast.features.schedules.model import (
    HOLD,
    Decision,
    Firing,
    Placed,
    Schedule,
    ScheduleDraft,
    Template,
    jitter_of,
    job_arguments,
    plan,
    redefined,
)
from holdfast.stores.flow import Flow, Steps
from holdfast.stores.port import Caller
from holdfast.stores.requests import new_id
from holdfast.worker.maintenance import MaintenanceTask

if TYPE_CHECKING:
    from holdfast.features.assembly import Store

log = logging.getLogger("holdfast.schedules")

Make = Callable[[str, Any, dict[str, Any]], JobSpec]
BATCH = 200


@dataclass(frozen=True, slots=True)
class FireResult:
    """The result of one run. ``reconciled``: it also synced the schedules that the code declares."""

    store: Store
    reconciled: bool
    count: int


class Scheduler:
    """The schedules that the code of one app declares, and the maintenance task that fires all schedules."""

    def __init__(self, caller: Caller, program: str, kinds: Collection[str], make: Make) -> None:
        self._caller = caller
        self._program = program
        self._kinds = kinds
        self._make = make
        self._declared: dict[str, ScheduleDraft] = {}
        self._reconciled: WeakSet[Store] = WeakSet()
        self.without_job: list[str] = []
        """Functions with ``@app.schedule`` that ``@app.job`` has not declared."""

    def check_declared(self) -> None:
        """Called before the first job runs, when the program has declared all of its kinds."""
        if self.without_job:
            raise InvalidSetting(
                f"@app.schedule on {', '.join(self.without_job)}, which is not a job",
                code="schedule_without_job",
                fix="Add @app.job below @app.schedule.",
            )

    def declare(self, draft: ScheduleDraft) -> None:
        if draft.name in self._declared:
            raise InvalidSetting(
                f"a schedule named {draft.name!r} already exists", code="duplicate_schedule", fix="Pass a name."
            )
        if draft.template is None:
            payload, due = json.loads(draft.payload), datetime(2000, 1, 1, tzinfo=UTC)
            self._job(draft.kind, draft.name, None, payload, draft.options, due, self._caller.tenant)
        self._declared[draft.name] = draft

    def maintenance_task(self, tenant: str, every: float) -> MaintenanceTask:
        return MaintenanceTask("schedules", every, lambda store: self.attend(store, tenant), self._count, BATCH)

    def attend(self, store: Store, tenant: str) -> Flow[FireResult]:
        peek, fire = partial(self._peek, store, tenant), partial(self.fire_schedules, store, tenant)
        return Flow(fire, peek=peek, notifies=True)

    def _count(self, result: FireResult) -> int:
        if result.reconciled:  # remembered only now that it is committed
            self._reconciled.add(result.store)
        return result.count

    def _peek(self, store: Store, tenant: str) -> Steps[FireResult | None]:
        if store not in self._reconciled:
            return None
        _, due, _ = yield from store.schedules.due(tuple(self._kinds), 1, tenant).start()
        halted = bool(due) and any(pause.halts for pause in (yield from store.pauses.list(tenant).start()))
        return None if due and not halted else FireResult(store, False, 0)

    def fire_schedules(self, store: Store, tenant: str) -> Steps[FireResult]:
        """Read, decide and apply in one transaction. Metrics report it by this function's name."""
        fresh = store not in self._reconciled
        if fresh:
            yield from self._reconcile(store)
        now, due, run = yield from store.schedules.due(tuple(self._kinds), BATCH, tenant, held=fresh).start()
        pauses = (yield from store.pauses.list(tenant).start()) if due else []
        if any(pause.halts for pause in pauses):
            return FireResult(store, fresh, 0)  # the policy of each schedule decides about times missed meanwhile
        templates: dict[tuple[str, str], Template | None] = {}
        decisions = []
        for schedule in due:
            key = (schedule.tenant, schedule.template or "")
            if schedule.template is not None and key not in templates:
                templates[key] = yield from store.templates.get(schedule.template, schedule.tenant).start()
            decision = self.decide(schedule, templates.get(key), now, schedule.kind in run)
            decisions.append(_postponed(schedule, now, "paused") if _is_refused(decision, pauses) else decision)
        if any(firing.job is not None for decision in decisions for firing in decision.firings):
            rules = yield from store.payload_rules.list(tenant).start()
            decisions = [_checked_payloads(decision, rules) for decision in decisions] if rules else decisions
        applied = (yield from store.schedules.fire(decisions, tenant).start()) if decisions else 0
        return FireResult(store, fresh, applied)

    # --- deciding ---

    def decide(self, schedule: Schedule, template: Template | None, now: datetime, elsewhere: bool) -> Decision:
        """Decide about a due schedule. ``elsewhere``: another live worker handles its kind. A kind that no worker
        handles is unknown."""
        if schedule.kind not in self._kinds and not elsewhere:
            return _postponed(schedule, now, "unknown_kind")
        try:
            planned = plan(schedule, now)
        except HoldfastError as error:  # a zone that this machine does not have, or a timing written by hand
            return _postponed(schedule, now, error.code)
        except Exception:
            log.exception("The times of schedule %s cannot be computed", schedule.name)
            return _postponed(schedule, now, "invalid_schedule")
        firings = [self._firing(schedule, template, due) for due in planned.fire]
        if planned.missed:
            missed = planned.missed
            firings.insert(0, Firing(missed[-1], "missed", count=len(missed), since_at=missed[0]))
        spare = self._firing(schedule, template, now) if schedule.overlap == "queue" else None
        following = planned.next_fire_at
        return Decision(
            schedule=schedule,
            firings=tuple(firings),
            next_fire_at=following,
            attend_at=None if following is None else following + jitter_of(schedule, following),
            spare=spare if spare is not None and spare.action == "fire" else None,
            problem=next((firing.code for firing in firings if firing.code is not None), None),
        )

    def _firing(self, schedule: Schedule, template: Template | None, due: datetime) -> Firing:
        """The job of a due time, or its error: one invalid schedule must not stop the others."""
        try:
            if schedule.template is not None and (template is None or template.removed):
                return Firing(due, "failed", code="template_not_found", message=f"template {schedule.template} is gone")
            spec = self._job(
                schedule.kind, schedule.name, template, schedule.payload, schedule.options, due, schedule.tenant
            )
        except HoldfastError as error:
            return Firing(due, "failed", code=error.code, message=error.message)
        except Exception as error:  # options written by hand, or an error in the user's validator
            return Firing(due, "failed", code="invalid_schedule", message=f"{type(error).__name__}: {error}")
        return Firing(due, "fire", spec, None if template is None else template.version)

    def _job(
        self,
        kind: str,
        name: str,
        template: Template | None,
        payload: Mapping[str, Any],
        options: Mapping[str, Any],
        due: datetime,
        tenant: str,
    ) -> JobSpec:
        arguments, merged = job_arguments(template, payload, options, due)
        return self._make(kind, arguments, {**merged, "tenant": tenant, "enqueued_by": f"schedule {name}"})

    # --- declaring ---

    def _reconcile(self, store: Store) -> Steps[None]:
        """Sync the declared schedules to the database, once per process, when it starts. If two versions of the code
        run, the one that started last wins, and neither repeats it."""
        caller = self._caller
        own = yield from store.schedules.declared(self._program, caller.tenant).start()
        stored = {schedule.name: schedule for schedule in own}
        now = yield from store.clock.now().start()
        for name, draft in self._declared.items():
            read, digest = stored.get(name), draft.digest()
            if draft.template is not None:
                template = yield from store.templates.get(draft.template, caller.tenant).start()
                if template is None or template.removed:
                    log.warning("Schedule %s skipped: no template %s", name, draft.template)
                    continue
                draft = dataclasses.replace(draft, kind=template.kind)
            if read is None:
                yield from self._introduce(store, draft, digest, now)
            elif read.declared_hash != digest:
                placed = redefined(read, draft, now).declared(self._program, digest)
                state = "active" if read.state == "ended" else read.state
                if (yield from store.schedules.change(read, placed, state, caller.actor, caller.tenant).start()):
                    log.info("Schedule %s updated from the code: %s", name, draft.timing.text)
        removed = {name for name, read in stored.items() if name not in self._declared and read.undeclared_at is None}
        returned = {name for name, read in stored.items() if name in self._declared and read.undeclared_at is not None}
        if removed or returned:
            gone = yield from store.schedules.declare(self._program, sorted(self._declared), caller.tenant).start()
            for name in gone:
                log.warning(
                    "Schedule %s is in the database but no longer declared by %s; it still fires. To delete it: "
                    "holdfast schedules remove %s",
                    name,
                    self._program,
                    name,
                )

    def _introduce(self, store: Store, draft: ScheduleDraft, digest: str, now: datetime) -> Steps[None]:
        try:
            placed = Placed.at(new_id(), draft, now).declared(self._program, digest)
        except InvalidSetting:  # a single time that has passed
            log.info("Declared schedule %s has no future time", draft.name)
            return
        caller = self._caller
        if not (yield from store.schedules.add(placed, caller.actor, caller.tenant).start()):
            log.warning("Declared schedule %s skipped: another schedule has this name", draft.name)


def _is_refused(decision: Decision, pauses: list[Pause]) -> bool:
    """Whether a pause refuses a job that the decision would create."""
    firings = decision.firings if decision.spare is None else (*decision.firings, decision.spare)
    specs = [firing.job for firing in firings if firing.job is not None]
    tenant = decision.schedule.tenant
    return any(pause.refuses(tenant, spec.queue, spec.kind, spec.agent) for pause in pauses for spec in specs)


def _checked_payloads(decision: Decision, rules: Sequence[PayloadRule]) -> Decision:
    """The decision with jobs that violate a payload rule turned into failures. Otherwise the store would refuse the
    whole batch."""

    def check(firing: Firing) -> Firing:
        job = firing.job
        rule = NO_RULE if job is None else effective(rules, decision.schedule.tenant, job.kind)
        refused = None if job is None else rule.refusal(job.kind, job.payload)
        return (
            firing if refused is None else Firing(firing.due_at, "failed", code=refused.code, message=refused.message)
        )

    firings = tuple(map(check, decision.firings))
    spare = decision.spare if decision.spare is None or check(decision.spare).action == "fire" else None
    problem = decision.problem or next((firing.code for firing in firings if firing.code is not None), None)
    return dataclasses.replace(decision, firings=firings, spare=spare, problem=problem)


def _postponed(schedule: Schedule, now: datetime, problem: str) -> Decision:
    """Postpone the schedule and keep its next time: the worker that fires it later applies the policy for missed
    times."""
    return Decision(schedule=schedule, next_fire_at=schedule.next_fire_at, attend_at=now + HOLD, problem=problem)
