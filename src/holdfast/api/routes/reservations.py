"""Reservations: what is used directly while no job is begun there."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from holdfast.access import Scope
from holdfast.api.answers import PAGE, Id, Limit, Page
from holdfast.api.asking import TheApp, allowed
from holdfast.domain.reservations import Reservation

router = APIRouter(prefix="/reservations", tags=["reservations"])


@router.get("", dependencies=[allowed(Scope.READ)], response_model=Page[Reservation])
async def list_reservations(
    app: TheApp, ended: Annotated[bool, Query()] = False, limit: Limit = PAGE
) -> Page[Reservation]:
    """Those that wait or are active, in their order; with `ended` the others too, newest first."""
    return Page(items=await app.reservations.alist(ended=ended, limit=limit))


@router.delete("/{reservation_id}", dependencies=[allowed(Scope.OPERATE)], status_code=204)
async def release_reservation(
    app: TheApp, reservation_id: Id, reason: Annotated[str, Query(max_length=2_000)] = "released by an operator"
) -> None:
    """End somebody's reservation: whoever holds it is told when it next keeps it alive."""
    await app.reservations.arelease(reservation_id, reason=reason)
