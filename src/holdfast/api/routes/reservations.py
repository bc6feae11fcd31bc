"""Reservations: what is used directly while no job is begun there."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query
from pydantic import ConfigDict

from holdfast.access import Scope
from holdfast.api.answers import PAGE, Id, Limit, Page
from holdfast.api.asking import TheApp, allowed, allowed_one
from holdfast.api.bodies import Body, Span, Text, Words
from holdfast.api.routing import Router
from holdfast.engine.ids import parse_id
from holdfast.errors import NotFound
from holdfast.features.limits.model import Reservation, Reserved

router = Router(prefix="/reservations", tags=["reservations"])


class Reserve(Body):
    """A resource, a queue, or (with neither) everything; kept for ``ttl`` (30 s) unless it is asked for again."""

    model_config = ConfigDict(
        extra="forbid", json_schema_extra={"examples": [{"resource": "gpu-0", "ttl": "1m", "reason": "measuring"}]}
    )

    resource: Text | None = None
    queue: Text | None = None
    ttl: Span | None = None
    reason: Words | None = None


@router.get("", dependencies=[allowed(Scope.READ)], response_model=Page[Reservation])
async def list_reservations(
    app: TheApp, ended: Annotated[bool, Query()] = False, limit: Limit = PAGE
) -> Page[Reservation]:
    """Those that wait or are active, in their order; with `ended` the others too, newest first."""
    return Page(items=await app.reservations.alist(ended=ended, limit=limit))


@router.get("/{reservation_id}", dependencies=[allowed(Scope.READ)], response_model=Reservation)
async def show_reservation(app: TheApp, reservation_id: Id) -> Reservation:
    found = await app.reservations.aget(reservation_id)
    if found is None:
        raise NotFound(f"there is no reservation {reservation_id}", code="reservation_not_found")
    return found


@router.put("/{reservation_id}", dependencies=[allowed_one(Scope.OPERATE)], response_model=Reserved)
async def reserve(app: TheApp, reservation_id: Id, body: Reserve) -> Reserved:
    """Stand in line under an id of yours (a UUID), or ask again: that keeps it alive for `ttl` more, so ask every third
    of it. It is yours while its state is `active`; `running` jobs, begun before, are still under way there."""
    given = {name: value for name, value in body.given().items() if value is not None}
    return await app.reservations.aask(parse_id(reservation_id), **given)


@router.delete("/{reservation_id}", dependencies=[allowed(Scope.OPERATE)], status_code=204)
async def release_reservation(
    app: TheApp, reservation_id: Id, reason: Annotated[str, Query(max_length=2_000)] = "released by an operator"
) -> None:
    """End a reservation, your own or somebody's: whoever holds it is told when it next keeps it alive."""
    await app.reservations.arelease(parse_id(reservation_id), reason=reason)
