"""What every worker does about schedules: declare those of its code, and fire what has come.

No leader: any number of processes may do this at once. Each reads what has come, decides in Python, and hands the
decision to the store, which applies it only to what is still as it was read.
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
    moved,
    plan,
    spread,
    together,
)
from holdfast.stores.flow import Flow, Steps
from holdfast.stores.port import Caller
from holdfast.worker.maintenance import MaintenanceTask

if TYPE_CHECKING:
    from holdfast.features.assembly import Store

log = logging.getLogger("holdfast.schedules")

Make = Callable[[str, Any, dict[str, Any]], JobSpec]
BATCH = 200


@dataclass(frozen=True, slots=True)
class Attended:
    """What one look brought: ``declared`` when the code's own schedules were seen to."""

    store: Store
    declared: bool
    count: int


class Scheduler:
    """The schedules that the code of one app declares, and the duty that fires all there are."""

    def __init__(
        self, caller: Caller, program: str, kinds: Collection[str], make: Make, new_id: Callable[[], str]
    ) -> None:
        self._caller = caller
        self._program = program
        self._kinds = kinds
        self.make = make
        self._new_id = new_id
        self._declared: dict[str, ScheduleDraft] = {}
        self._told: WeakSet[Store] = WeakSet()

    def declare(self, draft: ScheduleDraft) -> None:
        if draft.name in self._declared:
            raise InvalidSetting(
                f"a schedule named {draft.name!r} already exists", code="duplicate_schedule", fix="Pass a name."
            )
        if draft.template is None:
            payload, due = json.loads(draft.payload), datetime(2000, 1, 1, tzinfo=UTC)
            self._firing(draft.kind, draft.name, None, payload, draft.options, due, self._caller.tenant)
        self._declared[draft.name] = draft

    def duty(self, tenant: str, every: float) -> MaintenanceTask:
        return MaintenanceTask("schedules", every, lambda store: self.attend(store, tenant), self._count, BATCH)

    def attend(self, store: Store, tenant: str) -> Flow[Attended]:
        look, fire = partial(self._peek, store, tenant), partial(self.fire_schedules, store, tenant)
        return Flow(fire, peek=look, tells=True)

    def _count(self, attended: Attended) -> int:
        if attended.declared:  # only now: it has been committed
            self._told.add(attended.store)
        return attended.count

    def _peek(self, store: Store, tenant: str) -> Steps[Attended | None]:
        if store not in self._told:
            return None
        _, due, _ = yield from store.schedules.due(tuple(self._kinds), 1, tenant).start()
        off = bool(due) and any(pause.halts for pause in (yield from store.pauses.list(tenant).start()))
        return None if due and not off else Attended(store, False, 0)

    def fire_schedules(self, store: Store, tenant: str) -> Steps[Attended]:
        """One transaction: read, decide, apply. It bears the name of the operation that it comes to."""
        fresh = store not in self._told
        if fresh:
            yield from self._reconcile(store)
        now, due, run = yield from store.schedules.due(tuple(self._kinds), BATCH, tenant, held=fresh).start()
        pauses = (yield from store.pauses.list(tenant).start()) if due else []
        if any(pause.halts for pause in pauses):
            return Attended(store, fresh, 0)  # what is missed meanwhile is for the policy of each
        refusing = [pause for pause in pauses if pause.refuse_enqueue]
        templates: dict[tuple[str, str], Template | None] = {}
        decisions = []
        for schedule in due:
            known = (schedule.tenant, schedule.template or "")
            if schedule.template is not None and known not in templates:
                templates[known] = yield from store.templates.get(schedule.template, schedule.tenant).start()
            decided = self.decide(schedule, templates.get(known), now, schedule.kind in run)
            decisions.append(_held(schedule, now, "paused") if _is_refused(decided, refusing) else decided)
        if any(firing.job is not None for decision in decisions for firing in decision.firings):
            rules = yield from store.payload_rules.list(tenant).start()
            decisions = [judged(decision, rules) for decision in decisions] if rules else decisions
        applied = (yield from store.schedules.fire(decisions, tenant).start()) if decisions else 0
        return Attended(store, fresh, applied)

    # --- deciding ---

    def decide(self, schedule: Schedule, template: Template | None, now: datetime, elsewhere: bool) -> Decision:
        """``elsewhere`` somebody is alive who takes jobs of this kind; else one that is not ours is not known."""
        if schedule.kind not in self._kinds and not elsewhere:
            return _held(schedule, now, "unknown_kind")
        try:
            planned = plan(schedule, now)
        except HoldfastError as error:  # a zone that this machine does not know, or times written by hand
            return _held(schedule, now, error.code)
        except Exception:
            log.exception("The times of schedule %s cannot be computed", schedule.name)
            return _held(schedule, now, "invalid_schedule")
        firings = [self._of(schedule, template, due) for due in planned.fire]
        if planned.missed:
            missed = planned.missed
            firings.insert(0, Firing(missed[-1], "missed", count=len(missed), since_at=missed[0]))
        spare = self._of(schedule, template, now) if schedule.overlap == "queue" else None
        following = planned.next_fire_at
        return Decision(
            schedule=schedule,
            firings=tuple(firings),
            next_fire_at=following,
            attend_at=None if following is None else following + spread(schedule, following),
            spare=spare if spare is not None and spare.action == "fire" else None,
            problem=next((firing.code for firing in firings if firing.code is not None), None),
        )

    def _of(self, schedule: Schedule, template: Template | None, due: datetime) -> Firing:
        """A time as a job, or as what kept it from becoming one: no schedule keeps the others from theirs."""
        try:
            if schedule.template is not None and (template is None or template.removed):
                return Firing(due, "failed", code="template_not_found", message=f"template {schedule.template} is gone")
            spec = self._firing(
                schedule.kind, schedule.name, template, schedule.payload, schedule.options, due, schedule.tenant
            )
        except HoldfastError as error:
            return Firing(due, "failed", code=error.code, message=error.message)
        except Exception as error:  # options written by hand, or a validator of the user's own
            return Firing(due, "failed", code="invalid_schedule", message=f"{type(error).__name__}: {error}")
        return Firing(due, "fire", spec, None if template is None else template.version)

    def _firing(
        self,
        kind: str,
        name: str,
        template: Template | None,
        payload: Mapping[str, Any],
        options: Mapping[str, Any],
        due: datetime,
        tenant: str,
    ) -> JobSpec:
        arguments, given = together(template, payload, options, due)
        return self.make(kind, arguments, {**given, "tenant": tenant, "enqueued_by": f"schedule {name}"})

    # --- declaring ---

    def _reconcile(self, store: Store) -> Steps[None]:
        """Bring the database to what the code says, once a process, when it starts: of two versions of the code the one
        that started last has said the last word, and neither says it again."""
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
                placed = moved(read, draft, now).declared(self._program, digest)
                state = "active" if read.state == "ended" else read.state
                if (yield from store.schedules.change(read, placed, state, caller.actor, caller.tenant).start()):
                    log.info("Schedule %s updated from the code: %s", name, draft.timing.text)
        strangers = {name for name, read in stored.items() if name not in self._declared and read.undeclared_at is None}
        returned = {name for name, read in stored.items() if name in self._declared and read.undeclared_at is not None}
        if strangers or returned:
            gone = yield from store.schedules.declare(self._program, sorted(self._declared), caller.tenant).start()
            for name in gone:
                log.warning(
                    "Schedule %s is in the database but no longer declared by %s; it still fires. To delete it: "
                    "holdfast schedules delete %s",
                    name,
                    self._program,
                    name,
                )

    def _introduce(self, store: Store, draft: ScheduleDraft, digest: str, now: datetime) -> Steps[None]:
        try:
            placed = Placed.at(self._new_id(), draft, now).declared(self._program, digest)
        except InvalidSetting:  # a single time that is over
            log.info("Declared schedule %s has no time left", draft.name)
            return
        caller = self._caller
        if not (yield from store.schedules.add(placed, caller.actor, caller.tenant).start()):
            log.warning("Declared schedule %s skipped: another schedule has this name", draft.name)


def _is_refused(decision: Decision, refusing: list[Pause]) -> bool:
    """Whether a job that it would make is not accepted now."""
    firings = decision.firings if decision.spare is None else (*decision.firings, decision.spare)
    specs = [firing.job for firing in firings if firing.job is not None]
    whose = decision.schedule.tenant
    return any(each.holds(whose, spec.queue, spec.kind, spec.agent) for each in refusing for spec in specs)


def judged(decision: Decision, rules: Sequence[PayloadRule]) -> Decision:
    """With what a rule for payloads would refuse as a failure: the store would refuse all the others with it."""

    def judge(firing: Firing) -> Firing:
        job = firing.job
        rule = NO_RULE if job is None else effective(rules, decision.schedule.tenant, job.kind)
        refused = None if job is None else rule.objection(job.kind, job.payload)
        return (
            firing if refused is None else Firing(firing.due_at, "failed", code=refused.code, message=refused.message)
        )

    firings = tuple(map(judge, decision.firings))
    spare = decision.spare if decision.spare is None or judge(decision.spare).action == "fire" else None
    problem = decision.problem or next((each.code for each in firings if each.code is not None), None)
    return dataclasses.replace(decision, firings=firings, spare=spare, problem=problem)


def _held(schedule: Schedule, now: datetime, problem: str) -> Decision:
    """Leave it for a while with its time as it is: whoever can fire it later follows the policy for missed times."""
    return Decision(schedule=schedule, next_fire_at=schedule.next_fire_at, attend_at=now + HOLD, problem=problem)
