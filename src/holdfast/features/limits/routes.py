"""HTTP routes of limits, pauses, reservations and queue settings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from fastapi import Query
from pydantic import BeforeValidator, ConfigDict, Field

from holdfast.engine.ids import parse_id
from holdfast.errors import Refused
from holdfast.features.limits.model import Pause, PauseTarget, QueueSetting, Reservation, Reserved
from holdfast.features.limits.operations import Limits
from holdfast.features.tokens.model import Scope
from holdfast.server.auth import Identity
from holdfast.server.bodies import Body, Instant, LongText, Span, Text, time_if_dated
from holdfast.server.derived import routes
from holdfast.server.json_body import Router
from holdfast.server.parameters import PAGE, Caller, Id, NamePath, Page, TheApp, allowed, allowed_one_tenant
from holdfast.server.parameters import Limit as PageLimit

pause_router = Router(prefix="/pauses", tags=["pauses"])


class What(Body):
    """The target of a pause: a queue, a kind, an agent or everything, of the tenant or of every tenant."""

    queue: Text | None = None
    kind: Text | None = None
    agent: Text | None = None
    everything: bool = False
    every_tenant: bool = Field(default=False, description="For operators of the whole system.")

    def named(self, who: Identity) -> PauseTarget:
        given = PauseTarget()
        if self.queue is not None:
            given["queue"] = self.queue
        if self.kind is not None:
            given["kind"] = self.kind
        if self.agent is not None:
            given["agent"] = self.agent
        if self.every_tenant or who.is_every_tenant:
            if not who.operates_all:
                raise Refused(
                    "this operation affects every tenant",
                    code="not_for_a_tenant",
                    fix="Use a token of tenant *, which is for operators of the whole system.",
                )
            given["everything"] = self.everything
        elif given or self.everything:
            given["tenant"] = who.tenant  # alone, it means everything of the tenant
        return given


class PauseRequest(What):
    model_config = ConfigDict(
        extra="forbid", json_schema_extra={"examples": [{"queue": "mail", "reason": "SMTP is down", "until": "1h"}]}
    )

    reason: LongText
    until: Annotated[Instant | Span | None, BeforeValidator(time_if_dated)] = Field(
        default=None, description="A time, or a duration."
    )
    refuse_enqueue: bool | None = None


@pause_router.get("", dependencies=[allowed(Scope.READ)], response_model=Page[Pause])
async def list_pauses(app: TheApp) -> Page[Pause]:
    """List what is paused for this tenant and for all tenants, widest first."""
    return Page(items=await app.pauses.alist())


@pause_router.post("", dependencies=[allowed(Scope.OPERATE)], response_model=Pause)
async def pause(app: TheApp, who: Caller, body: PauseRequest) -> Pause:
    """Pause a queue, a kind, an agent or everything. Running jobs finish."""
    return await app.pauses.aset(
        reason=body.reason, until=body.until, refuse_enqueue=body.refuse_enqueue, **body.named(who)
    )


@pause_router.post("/resume", dependencies=[allowed(Scope.OPERATE)], status_code=204)
async def resume(app: TheApp, who: Caller, body: What) -> None:
    """Resume what was paused, named in the same way."""
    await app.pauses.aremove(**body.named(who))


router = routes("limits", Limits)

reservation_router = Router(prefix="/reservations", tags=["reservations"])


class Reserve(Body):
    """A resource, a queue, or (with neither) everything; held for ``ttl`` (30 s) unless it is renewed."""

    model_config = ConfigDict(
        extra="forbid", json_schema_extra={"examples": [{"resource": "gpu-0", "ttl": "1m", "reason": "measuring"}]}
    )

    resource: Text | None = None
    queue: Text | None = None
    ttl: Span | None = None
    reason: LongText | None = None


@reservation_router.get("", dependencies=[allowed(Scope.READ)], response_model=Page[Reservation])
async def list_reservations(
    app: TheApp, ended: Annotated[bool, Query()] = False, limit: PageLimit = PAGE
) -> Page[Reservation]:
    """List waiting and active reservations in order; `ended` includes ended ones, newest first."""
    return Page(items=await app.reservations.alist(ended=ended, limit=limit))


@reservation_router.get("/{reservation_id}", dependencies=[allowed(Scope.READ)], response_model=Reservation)
async def show_reservation(app: TheApp, reservation_id: Id) -> Reservation:
    return await app.reservations.aget(reservation_id)


@reservation_router.put("/{reservation_id}", dependencies=[allowed_one_tenant(Scope.OPERATE)], response_model=Reserved)
async def reserve(app: TheApp, reservation_id: Id, body: Reserve) -> Reserved:
    """Request a reservation under an id of yours (a UUID), or renew it for another `ttl`; renew it every third of that.
    It is yours while its state is `active`. `running` is the number of jobs that started there before and still run."""
    given = {name: value for name, value in body.given().items() if value is not None}
    return await app.reservations.aset(parse_id(reservation_id), **given)


@reservation_router.delete("/{reservation_id}", dependencies=[allowed(Scope.OPERATE)], status_code=204)
async def release_reservation(
    app: TheApp,
    reservation_id: Id,
    reason: Annotated[str, Query(max_length=2_000)] = "released by an operator",
    outcome: Annotated[Literal["succeeded", "failed"] | None, Query(description="Of the recorded run.")] = None,
    error_code: Annotated[str | None, Query(max_length=100)] = None,
    error_message: Annotated[str | None, Query(max_length=2_000)] = None,
) -> None:
    """Release a reservation, yours or another caller's. Its holder is notified at the next renewal. A recorded run ends
    with it: with `outcome`, or as failed."""
    end = {"outcome": outcome, "error_code": error_code, "error_message": error_message}
    await app.reservations.arelease(parse_id(reservation_id), reason=reason, **end)


class Record(Body):
    kind: Text


@dataclass(frozen=True, slots=True)
class RecordedRun:
    id: str
    job_id: str


@reservation_router.post(
    "/{reservation_id}/record", dependencies=[allowed_one_tenant(Scope.OPERATE)], response_model=RecordedRun
)
async def record_reservation(app: TheApp, reservation_id: Id, body: Record) -> RecordedRun:
    """Record the work of an active reservation's holder as a running job of this kind."""
    return RecordedRun(reservation_id, await app.reservations.arecord(parse_id(reservation_id), body.kind))


queue_router = Router(prefix="/queues", tags=["queues"])


class Aging(Body):
    every: Span | None = Field(description="Waiting time per step; null turns aging off.")
    step: int = Field(default=1, ge=1, le=32_767)
    most: int = Field(default=100, ge=-32_768, le=32_767)


@queue_router.get("", dependencies=[allowed(Scope.READ)], response_model=Page[QueueSetting])
async def list_queue_settings(app: TheApp) -> Page[QueueSetting]:
    """List the queues with settings."""
    return Page(items=await app.queues.alist())


@queue_router.put(
    "/{name:path}/aging", dependencies=[allowed_one_tenant(Scope.ADMIN)], response_model=QueueSetting | None
)
async def age_queue(app: TheApp, name: NamePath, body: Aging) -> QueueSetting | None:
    """Raise the priority of jobs by `step` for each `every` that they wait, up to `most`."""
    return await app.queues.aset_aging(name, every=body.every, step=body.step, most=body.most)
