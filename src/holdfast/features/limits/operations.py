"""``app.limits``, ``app.pauses``, ``app.reservations``, ``app.queues``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Annotated, Any, Literal, Unpack

from holdfast.engine.declared import Help, Most, http
from holdfast.engine.hints import check_options
from holdfast.engine.ids import parse_id
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
from holdfast.features.limits.hold import HeldReservation
from holdfast.features.limits.model import (
    RESERVATION_LONGEST,
    RESERVATION_SHORTEST,
    TTL,
    Limit,
    LimitOptions,
    LimitTarget,
    Pause,
    PauseDraft,
    PauseOptions,
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
from holdfast.stores.namespace import StoreNamespace
from holdfast.stores.port import Caller
from holdfast.stores.requests import new_id

_Reservations = list[Reservation]
ReservationId = Annotated[str, Help("The reservation's id, a UUID.", "ID", longest=100)]


class Reservations(StoreNamespace):
    """Reservations: no job starts on a reserved resource or queue."""

    def hold(
        self,
        resource: str | None = None,
        *,
        queue: str | None = None,
        wait: Duration | None = None,
        ttl: Duration = TTL,
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
        return HeldReservation(self, _request(id, **what), what, wait, at_once, kind)

    @operation
    @http("GET /reservations", "read")
    def list(
        self,
        *,
        ended: Annotated[bool, Help("Include ended reservations, newest first.")] = False,
        limit: Most = 50,
    ) -> Program[_Reservations]:
        """List reservations and the callers waiting for them, in order."""
        return (yield from run(self._store.reservations.list(self._tenant, ended, page_size(limit))))

    alist = awaited(list)

    @operation
    @http("GET /reservations/{reservation_id}", "read", name="show_reservation")
    def get(self, reservation_id: ReservationId) -> Program[Reservation]:
        """Show a reservation: who reserved what, since when, and how it ended."""
        reservation = yield from run(self._store.reservations.get(reservation_id, self._tenant))
        if reservation is None:
            raise _not_found(reservation_id)
        return reservation

    aget = awaited(get)

    @operation
    @http(
        "PUT /reservations/{reservation_id}",
        "operate",
        tenant="one",
        name="reserve",
        example={"resource": "gpu-0", "ttl": "1m", "reason": "measuring"},
    )
    def set(self, reservation_id: ReservationId, **what: Unpack[ReservationOptions]) -> Program[Reserved]:
        """Request a reservation under an id of yours (a UUID), or renew it for another ``ttl``; renew it every third of
        that. It is yours while its state is ``active``. ``running`` is the number of jobs that started there before and
        still run.

        ``hold`` does all of this for a block.
        """
        check_options(what, ReservationOptions.__annotations__)
        request = _request(parse_id(reservation_id), **what)
        status = yield from run(self._store.reservations.set(request, self._actor, self._tenant))
        reservation = yield from run(self._store.reservations.get(reservation_id, self._tenant))
        if reservation is None:  # the id belongs to another tenant
            raise _not_found(reservation_id)
        columns = {field.name: getattr(reservation, field.name) for field in fields(reservation)}
        return Reserved(**columns | {"state": status.state}, running=status.running, ahead=status.ahead)

    aset = awaited(set)

    @operation
    @http(
        "POST /reservations/{reservation_id}/record",
        "operate",
        tenant="one",
        name="record_reservation",
        result="job_id",
        example={"kind": "nightly_import"},
    )
    def record(
        self, reservation_id: ReservationId, kind: Annotated[str, Help("The kind of the job.", "KIND")]
    ) -> Program[str]:
        """Record the work of an active reservation's holder as a running job of this kind.

        It ends when the reservation is released, and as crashed when that expires. Returns the job's id; a repeated
        call returns the same one.
        """
        name = check_name(kind, "kind")
        if self._tenant == EVERY_TENANT:
            raise InvalidSetting("a recorded run belongs to one tenant", code="tenant_required")
        id = parse_id(reservation_id)
        job_id = yield from run(self._store.reservations.record(id, name, self._actor, self._tenant))
        if job_id is None:
            raise NotFound(f"no active reservation {reservation_id}", code="reservation_not_found")
        return job_id

    arecord = awaited(record)

    @operation
    @http("DELETE /reservations/{reservation_id}", "operate", name="release_reservation")
    def release(
        self,
        reservation_id: ReservationId,
        *,
        reason: Annotated[
            str, Help("The reason, stored with the reservation.", longest=2_000)
        ] = "released by an operator",
        outcome: Annotated[
            Literal["succeeded", "failed"] | None, Help("The outcome of the recorded run.", cli=False)
        ] = None,
        error_code: Annotated[str | None, Help("The error of a failed run.", longest=100, cli=False)] = None,
        error_message: Annotated[str | None, Help("Its message.", longest=2_000, cli=False)] = None,
    ) -> Program[None]:
        """Release a reservation, yours or another caller's. Jobs start there again; its holder is notified at the next
        renewal. A recorded run ends with it: with its outcome, or as failed."""
        id, why, end = parse_id(reservation_id), storable(reason), _run_end(outcome, error_code, error_message)
        if not (
            yield from run(self._store.reservations.release(id, why or "released", self._actor, self._tenant, end))
        ):
            raise NotFound(f"no open reservation {reservation_id}", code="reservation_not_found")

    arelease = awaited(release)


def _request(
    id: str,
    *,
    resource: str | None = None,
    queue: str | None = None,
    ttl: Duration | None = None,
    reason: str | None = None,
) -> ReservationRequest:
    scope, name = limit_target(resource=resource, queue=queue)
    lifetime = TTL if ttl is None else seconds(ttl, "ttl")
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
    """Pauses of a queue, a kind, an agent or everything, of a tenant or of every tenant: their jobs do not start."""

    @operation
    @http("PUT /pauses", "operate", owner="tenant", example={"queue": "mail", "reason": "SMTP is down", "until": "1h"})
    def set(
        self,
        *,
        reason: Annotated[str, Help("The reason, shown to callers whose job is refused.", longest=2_000)],
        **options: Unpack[PauseOptions],
    ) -> Program[Pause]:
        """Pause a queue, a kind, an agent or everything. Running jobs finish.

        ``app.pauses.set(queue="mail", reason="SMTP is down", until="1h")`` is for every tenant, with ``tenant="acme"``
        for one. After this returns, no claim takes such a job. ``until`` is a time, or a duration, after which the
        pause ends.

        New jobs are accepted and wait, or are refused on request. A pause of everything for every tenant refuses them
        by default, and stops maintenance too: no schedule fires, no job is promoted, expired or freed.
        """
        check_options(options, PauseOptions.__annotations__)
        return (yield from run(self._store.pauses.set(PauseDraft.of(reason, **options), self._actor)))

    aset = awaited(set)

    @operation
    @http("DELETE /pauses", "operate", owner="tenant")
    def remove(self, **what: Unpack[PauseTarget]) -> Program[None]:
        """Resume what was paused, named in the same way. Also enables a disabled agent."""
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
    @http("GET /pauses", "read")
    def list(self) -> Program[_Pauses]:
        """List what is paused, for a tenant and for all tenants, including disabled agents."""
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
        check_options(options, LimitOptions.__annotations__)
        given: dict[str, Any] = dict(options)
        bounds = {name: given.pop(name) for name in options if name not in LimitTarget.__annotations__}
        target = {name: str(value) if isinstance(value, int) else value for name, value in given.items()}
        rule = Rule.of(*self._changed(target), **bounds)
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
    @http("PUT /queues/{queue}/aging", "admin", tenant="one", name="set_queue_aging", example={"every": "10m"})
    def set_aging(
        self,
        queue: Annotated[str, Help("Name of the queue.", "QUEUE")],
        *,
        every: Annotated[Duration | None, Help("Waiting time per step: 10m.", clear=True)],
        step: Annotated[int, Help("Priority increase per step.", low=1, high=32_767)] = 1,
        most: Annotated[int, Help("Highest priority to reach.", low=-32_768, high=32_767)] = 100,
    ) -> Program[QueueSetting | None]:
        """Raise the priority of jobs the longer they wait in a queue.

        By ``step`` every ``every``, up to ``most``; ``every=None`` stops it. Raised priorities stay.
        """
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
    @http("GET /queues", "read", name="list_queue_settings")
    def list(self) -> Program[_Settings]:
        """List the queues with settings."""
        return (yield from run(self._store.queues.list(self._tenant)))

    alist = awaited(list)
