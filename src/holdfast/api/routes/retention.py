"""Retention: for how long finished jobs are kept. Without a policy: for ever."""

from __future__ import annotations

import asyncio
from typing import Annotated, Literal

from fastapi import Query

from holdfast.access import Scope
from holdfast.api.answers import Page
from holdfast.api.asking import TheApp, allowed, allowed_one
from holdfast.api.bodies import Body, Span, Text
from holdfast.api.routing import Router
from holdfast.features.retention.model import Preview, Retention

router = Router(prefix="/retention", tags=["retention"])

End = Literal["succeeded", "failed", "cancelled", "dead_letter"]


class Keep(Body):
    kind: Text | None = None
    state: End | None = None
    clean_after: Span | None = None
    purge_after: Span | None = None


@router.get("", dependencies=[allowed(Scope.READ)], response_model=Page[Retention])
async def list_retention(app: TheApp) -> Page[Retention]:
    """Those of the tenant and those of every tenant."""
    return Page(items=await asyncio.to_thread(app.retention.list))


@router.get("/preview", dependencies=[allowed(Scope.READ)], response_model=Page[Preview])
async def preview_retention(app: TheApp) -> Page[Preview]:
    """What each policy would do now, counted up to a limit; and who holds back a purge, if anybody does."""
    return Page(items=await asyncio.to_thread(app.retention.preview))


@router.put("", dependencies=[allowed_one(Scope.ADMIN)], response_model=Retention)
async def set_retention(app: TheApp, body: Keep) -> Retention:
    """Of a kind, of a state, or of all; the most specific policy decides alone."""
    return await asyncio.to_thread(
        app.retention.set,
        kind=body.kind,
        state=body.state,
        clean_after=body.clean_after,
        purge_after=body.purge_after,
    )


@router.delete("", dependencies=[allowed_one(Scope.ADMIN)], status_code=204)
async def delete_retention(
    app: TheApp, kind: Annotated[str | None, Query(max_length=255)] = None, state: End | None = None
) -> None:
    """Keep what it was about as the next wider policy says; without one for ever."""
    await asyncio.to_thread(app.retention.delete, kind=kind, state=state)
