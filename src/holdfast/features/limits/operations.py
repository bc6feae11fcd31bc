"""``app.limits``, ``app.pauses``, ``app.reservations``, ``app.queues``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from datetime import datetime
from typing import Unpack

from holdfast.engine.declared import http
from holdfast.engine.hints import check_options
from holdfast.engine.job import EVERY_TENANT
from holdfast.engine.names import check_name, page_size
from holdfast.engine.operation import Program, awaited, operation
from holdfast.engine.order import check_priority
from holdfast.engine.outcome import Failed, Succeeded
from holdfast.engine.payload import safe_text
from holdfast.engine.settlement import storable
from holdfast.engine.units import Duration, seconds
from holdfast.errors import InvalidSetting, NotFound, Refused
from holdfast.features.agents.model import Agent
from holdfast.features.limits.hold import HeldReservation, Reserver
from holdfast.features.limits.model import (
    RESERVATION_LONGEST,
    RESERVATION_SHORTEST,
    TTL,
    Limit,
    LimitOptions,
    LimitTarget,
    Pause,
    PauseDraft,
    PauseTarget,
    QueueSetting,
    Reservation,
    ReservationOptions,
    ReservationRequest,
    Reserved,
    Rule,
    RunEnd,
    in_words,
    limit_target,
    pause_target,
)
from holdfast.stores.flow import Steps, flow, read_together, run
from holdfast.stores.ids import new_id
from holdfast.stores.namespace import StoreNamespace
from holdfast.stores.port import Caller

_Reservations = list[Reservation]


class Reservations(StoreNamespace):
    """Reservations: no job starts on a reserved resource or queue."""

    def hold(
        self,
        resource: str | None = None,
        *,
        queue: str | None = None,
        wait: Duration | None = None,
        ttl: Duration = 30.0,
        at_once: bool = False,
        reason: str | None = None,
        record: str | None = None,
    ) -> HeldReservation:
        """Reserve for a block: ``with app.reservations.hold("gpu-0", wait="30s"):``, or ``async with``. Takes a
        resource, a queue, or neither for everything. The block starts when earlier reservations have ended and the jobs
        running there have finished; with ``at_once`` it does not wait for those jobs. After ``wait`` it is refused as
        busy.

        ``record="calibrate"`` records the block as a job of that kind with one attempt, which ends as the block does:
        ``held.job_id``. No worker claims it.
        """
        kind = None if record is None else check_name(record, "kind")
        id, what = new_id(), ReservationOptions(resource=resource, queue=queue, ttl=ttl, reason=reason)
        reserver = Reserver(
            lambda: self.set(id, **what),
            lambda: self.aset(id, **what),
            lambda why, **end: self.release(id, reason=why, **end),
            lambda why, **end: self.arelease(id, reason=why, **end),
            in_thread=True,
            record=None if kind is None else lambda: self.record(id, kind),
            arecord=None if kind is None else lambda: self.arecord(id, kind),
        )
        return HeldReservation(id, _request(id, **what).ttl, wait, at_once, reserver)

    @operation
    def list(self, *, ended: bool = False, limit: int = 50) -> Program[_Reservations]:
        """Waiting and active reservations in their order; with ``ended`` the others too, newest first."""
        return (yield from run(self._store.reservations.list(self._tenant, ended, page_size(limit))))

    alist = awaited(list)

    @operation
    def get(self, reservation_id: str) -> Program[Reservation]:
        """The reservation, or ``NotFound``."""
        reservation = yield from run(self._store.reservations.get(reservation_id, self._tenant))
        if reservation is None:
            raise _not_found(reservation_id)
        return reservation

    aget = awaited(get)

    @operation
    def set(self, reservation_id: str, **what: Unpack[ReservationOptions]) -> Program[Reserved]:
        """Request a reservation, or renew it with the same id: that keeps it for another ``ttl``. It is held while it
        is ``active``; jobs that started before are still ``running``. ``hold`` does all of this for a block."""
        check_options(what, ReservationOptions.__annotations__)
        request = _request(reservation_id, **what)
        status = yield from run(self._store.reservations.set(request, self._actor, self._tenant))
        reservation = yield from run(self._store.reservations.get(reservation_id, self._tenant))
        if reservation is None:  # the id belongs to another tenant
            raise _not_found(reservation_id)
        columns = {field.name: getattr(reservation, field.name) for field in fields(reservation)}
        return Reserved(**columns | {"state": status.state}, running=status.running, ahead=status.ahead)

    aset = awaited(set)

    @operation
    def record(self, reservation_id: str, kind: str) -> Program[str]:
        """Record the work of an active reservation's holder as a running job of this kind. It ends when the reservation
        is released, and as crashed when that expires. Returns the job's id; a repeated call returns the same one."""
        name = check_name(kind, "kind")
        if self._tenant == EVERY_TENANT:
            raise InvalidSetting("a recorded run belongs to one tenant", code="tenant_required")
        job_id = yield from run(self._store.reservations.record(reservation_id, name, self._actor, self._tenant))
        if job_id is None:
            raise NotFound(f"no active reservation {reservation_id}", code="reservation_not_found")
        return job_id

    arecord = awaited(record)

    @operation
    def release(
        self,
        reservation_id: str,
        *,
        reason: str = "released by an operator",
        outcome: str | None = None,
        error_code: str | None = None,
        error_message: str | None = None,
    ) -> Program[None]:
        """End a reservation. Its holder is notified at the next renewal. ``outcome`` is that of a recorded run:
        ``succeeded``, or ``failed`` with an error; without one the run failed with ``reservation_released``."""
        why, end = storable(reason) or "released", _run_end(outcome, error_code, error_message)
        if not (yield from run(self._store.reservations.release(reservation_id, why, self._actor, self._tenant, end))):
            raise NotFound(f"no open reservation {reservation_id}", code="reservation_not_found")

    arelease = awaited(release)


def _request(
    id: str,
    *,
    resource: str | None = None,
    queue: str | None = None,
    ttl: Duration = TTL,
    reason: str | None = None,
) -> ReservationRequest:
    scope, name = limit_target(resource=resource, queue=queue)
    lifetime = seconds(ttl, "ttl")
    if not RESERVATION_SHORTEST <= lifetime <= RESERVATION_LONGEST:
        raise InvalidSetting(
            f"ttl must be from {RESERVATION_SHORTEST} s to an hour, not {lifetime:g} s", code="invalid_duration"
        )
    if scope != "all" and name == "*":
        raise InvalidSetting("pass a name to reserve, or nothing to reserve everything", code="invalid_name")
    return ReservationRequest(id, scope, name, lifetime, storable(reason))


def _run_end(outcome: str | None, code: str | None, message: str | None) -> RunEnd | None:
    """How a recorded run ended; None if no outcome was given."""
    if outcome not in (None, "succeeded", "failed"):
        raise InvalidSetting("the outcome of a recorded run must be succeeded or failed", code="invalid_outcome")
    if outcome != "failed" and (code, message) != (None, None):
        raise InvalidSetting("only a failed run has an error", code="conflicting_options")
    if outcome != "failed":
        return None if outcome is None else Succeeded()
    return Failed(safe_text(code or "failed", 100), storable(message) or "the recorded run failed")


def _not_found(reservation_id: str) -> NotFound:
    return NotFound(f"no reservation {reservation_id}", code="reservation_not_found")


BATCH = 1000

_Pauses = list[Pause]  # inside the class, ``list`` is an operation


class Pauses(StoreNamespace):
    """Pauses of a queue, a kind, an agent, a tenant, or everything: their jobs do not start."""

    @operation
    def set(
        self,
        *,
        reason: str,
        until: datetime | Duration | None = None,
        refuse_enqueue: bool | None = None,
        **what: Unpack[PauseTarget],
    ) -> Program[Pause]:
        """Start no more jobs of a ``queue``, a ``kind``, an ``agent`` (of every tenant, or of a ``tenant``), of a whole
        ``tenant``, or of ``everything``: ``app.pauses.set(queue="mail", reason="SMTP is down", until="1h")``. After
        this returns, no claim takes such a job; running jobs may finish. ``until`` is a time, or a duration, after
        which the pause ends.

        New jobs are accepted and wait; ``refuse_enqueue=True`` refuses them. A pause of everything refuses them by
        default, and stops maintenance too: no schedule fires, no job is promoted, expired or freed.
        """
        check_options(what, PauseTarget.__annotations__)
        pausing = PauseDraft.of(pause_target(**what), reason, until, refuse_enqueue)
        return (yield from run(self._store.pauses.set(pausing, self._actor)))

    aset = awaited(set)

    @operation
    def remove(self, **what: Unpack[PauseTarget]) -> Program[None]:
        """End a pause, named as it was set: ``app.pauses.remove(queue="mail")``. Also enables a disabled agent."""
        check_options(what, PauseTarget.__annotations__)
        tenant, scope, name = pause_target(**what)
        if (yield from run(_resume(self._caller, (tenant, scope, name)))):
            return
        fix = "List the pauses: holdfast pauses"
        for pause in (yield from run(pauses_with_disabled_agents(self._caller, tenant))):
            if (pause.scope, pause.name) == (scope, name):  # for one tenant instead of all, or the reverse
                whose = "all tenants" if pause.tenant == EVERY_TENANT else f"tenant {pause.tenant}"
                fix = f"It is paused for {whose}: holdfast resume {pause.options}"
        whose = " for all tenants" if tenant == EVERY_TENANT and scope != "all" else ""
        raise NotFound(f"{in_words(scope, name, tenant)} is not paused{whose}", code="not_paused", fix=fix)

    aremove = awaited(remove)

    @operation
    def list(self) -> Program[_Pauses]:
        """Pauses of this tenant and of all tenants, the widest first, including disabled agents."""
        return (yield from run(pauses_with_disabled_agents(self._caller, self._tenant)))

    alist = awaited(list)


@flow()
def _resume(caller: Caller, what: tuple[str, str, str]) -> Steps[bool]:
    tenant, scope, name = what
    store = caller.store
    removed = yield from store.pauses.remove(scope, name, caller.actor, tenant).start()
    owner = caller.tenant if tenant == "*" else tenant
    agent = (yield from store.agents.get(name, owner).start()) if scope == "agent" else None
    if agent is None or not agent.disabled:
        return removed
    yield from store.agents.enable(name, owner, caller.actor).start()
    yield from store.agents.resume(name, BATCH, owner).start()
    return True


@flow(writes=False)
def pauses_with_disabled_agents(caller: Caller, tenant: str) -> Steps[_Pauses]:
    """The pauses, and the disabled agents as pauses."""
    pauses, disabled = yield from read_together(
        caller.store.pauses.list(tenant).start(), caller.store.agents.list(tenant, disabled=True).start()
    )
    return [*pauses, *(_as_pause(agent) for agent in disabled)]


def _as_pause(agent: Agent) -> Pause:
    by, why = agent.disabled_by or "", agent.disabled_reason or ""
    since = agent.disabled_at or agent.updated_at
    return Pause(agent.tenant, "agent", agent.id, why, True, by, since, None)


_Limits = list[Limit]  # inside the class, ``list`` is an operation


class Limits(StoreNamespace):
    """Limits on how many jobs run at the same time, and how many start per period."""

    @operation
    @http("PUT /limits", "admin", tenant="one", example={"queue": "mail", "concurrency": 5, "rate": "100/m"})
    def set(self, **options: Unpack[LimitOptions]) -> Program[Limit]:
        """Limit the jobs of a queue, kind, key, resource or agent; without one, all jobs. Takes effect at once.

        ``app.limits.set(queue="mail", concurrency=5)``, ``app.limits.set(kind="call", rate="100/m", burst=10)``. The
        name ``*`` means each name separately: ``key="*", concurrency=1`` runs one job per key. It replaces an existing
        limit on the same target immediately; jobs that run above a lowered limit finish.
        """
        bounds = {name: options.get(name) for name in ("concurrency", "rate", "burst")}
        check_options(options, LimitOptions.__annotations__)
        target = {
            name: str(value) if isinstance(value, int) else value
            for name, value in options.items()
            if name not in bounds
        }
        rule = Rule.of(*self._changed(target), **bounds)  # type: ignore[arg-type]
        return (yield from run(self._store.limits.set(rule, self._actor, self._tenant)))

    aset = awaited(set)

    @operation
    @http("DELETE /limits", "admin", tenant="one")
    def remove(self, **what: Unpack[LimitTarget]) -> Program[None]:
        """Remove a limit; without a target, the one on all jobs. Jobs that waited for it can start."""
        check_options(what, LimitTarget.__annotations__)
        scope, name = self._changed(what)
        if not (yield from run(self._store.limits.remove(scope, name, self._actor, self._tenant))):
            raise NotFound(f"no limit on {scope} {name} in this tenant", code="limit_not_found")

    aremove = awaited(remove)

    @operation
    @http("GET /limits", "read")
    def list(self) -> Program[_Limits]:
        """List the limits with the number of jobs running and waiting under each."""
        return (yield from run(self._store.limits.list(self._tenant)))

    alist = awaited(list)

    @operation
    @http("GET /limits/one", "read", name="show_limit")
    def get(self, **what: Unpack[LimitTarget]) -> Program[Limit]:
        """Show one limit; without a target, the one on all jobs."""
        check_options(what, LimitTarget.__annotations__)
        scope, name = limit_target(**what)
        for limit in (yield from run(self._store.limits.list(self._tenant))):
            if (limit.tenant, limit.scope, limit.name) == (self._tenant, scope, name):
                return limit
        raise NotFound(f"no limit on {scope} {name} in this tenant", code="limit_not_found")

    aget = awaited(get)

    def _changed(self, names: Mapping[str, object]) -> tuple[str, str]:
        """The target of a change. Limits on tenants belong to the operator of all of them, not to the tenant."""
        scope, name = limit_target(**names)
        if scope == "tenant" and self._tenant != EVERY_TENANT:
            raise Refused(
                f"tenant {self._tenant} cannot change limits on tenants",
                code="not_for_a_tenant",
                fix="Act for all tenants (--all-tenants), or use holdfast tenants set NAME --max-running N.",
            )
        return scope, name


AGING_SHORTEST, AGING_LONGEST = 0.001, 366 * 86_400.0

_Settings = list[QueueSetting]


class Queues(StoreNamespace):
    """Settings of queues."""

    @operation
    def set_aging(
        self, queue: str, *, every: Duration | None, step: int = 1, most: int = 100
    ) -> Program[QueueSetting | None]:
        """Raise the priority of waiting jobs in a queue by ``step`` every ``every``, up to ``most``; ``every=None``
        stops it. Raised priorities stay."""
        name = check_name(queue, "queue")
        span = None if every is None else seconds(every, "span of aging")
        if span is not None and not AGING_SHORTEST <= span <= AGING_LONGEST:
            raise InvalidSetting(
                f"the aging interval must be from {AGING_SHORTEST} s to a year, not {span:g} s", code="invalid_duration"
            )
        if not 1 <= check_priority(step) <= 32_767:
            raise InvalidSetting(f"an aging step must be from 1 to 32,767, not {step!r}", code="invalid_priority")
        most = check_priority(most)
        return (yield from run(self._store.queues.set_aging(name, span, step, most, self._actor, self._tenant)))

    aset_aging = awaited(set_aging)

    @operation
    def list(self) -> Program[_Settings]:
        """The queues that have settings."""
        return (yield from run(self._store.queues.list(self._tenant)))

    alist = awaited(list)
