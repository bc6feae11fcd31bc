"""``/retention`` and ``/usage``."""

from __future__ import annotations

from datetime import date
from typing import Annotated, Literal

from fastapi import Query
from pydantic import Field

from holdfast.features.retention.model import By, Preview, Retention, Usage
from holdfast.features.tokens.model import Scope
from holdfast.server.bodies import Body, Span, Text
from holdfast.server.json_body import Router
from holdfast.server.parameters import Page, TheApp, allowed, allowed_one_tenant

router = Router(prefix="/retention", tags=["retention"])

End = Literal["succeeded", "failed", "cancelled", "dead_letter"]


class SetRetention(Body):
    kind: Text | None = None
    state: End | None = None
    clean_after: Span | None = None
    purge_after: Span | None = None
    archive: bool = Field(False, description="Keep jobs until they are archived.")


@router.get("", dependencies=[allowed(Scope.READ)], response_model=Page[Retention])
async def list_retention(app: TheApp) -> Page[Retention]:
    """List the retention policies of the tenant and of all tenants."""
    return Page(items=await app.retention.alist())


@router.get("/preview", dependencies=[allowed(Scope.READ)], response_model=Page[Preview])
async def preview_retention(app: TheApp) -> Page[Preview]:
    """Show what each policy would remove now, counted up to a limit, and which consumers delay a purge."""
    return Page(items=await app.retention.apreview())


@router.put("", dependencies=[allowed_one_tenant(Scope.ADMIN)], response_model=Retention)
async def set_retention(app: TheApp, body: SetRetention) -> Retention:
    """Set a retention policy for a kind, a state, or all jobs. The most specific policy applies."""
    return await app.retention.aset(
        kind=body.kind,
        state=body.state,
        clean_after=body.clean_after,
        purge_after=body.purge_after,
        archive=body.archive,
    )


@router.delete("", dependencies=[allowed_one_tenant(Scope.ADMIN)], status_code=204)
async def delete_retention(
    app: TheApp, kind: Annotated[str | None, Query(max_length=255)] = None, state: End | None = None
) -> None:
    """Delete a retention policy. The next wider one applies; without any, jobs are kept forever."""
    await app.retention.aremove(kind=kind, state=state)


usage_router = Router(prefix="/usage", tags=["usage"])

MAX_BATCHES = 1_000
"""Batches of events that one request counts."""


@usage_router.get("", dependencies=[allowed(Scope.READ)], response_model=Page[Usage])
async def show_usage(
    app: TheApp,
    by: Annotated[list[By] | None, Query(max_length=3)] = None,
    since: date | None = None,
    until: date | None = None,
    kind: Annotated[str | None, Query(max_length=255)] = None,
) -> Page[Usage]:
    """Show usage, grouped by kind and day unless `by` says otherwise. Days are UTC, both inclusive. Workers update the
    counts; request the first count with `POST /usage/count`."""
    groups: list[By] = ["kind", "day"] if by is None else by
    return Page(items=await app.usage.alist(by=groups, since=since, until=until, kind=kind, count=False))


@usage_router.post("/count", dependencies=[allowed(Scope.OPERATE)], status_code=204)
async def count_usage(app: TheApp) -> None:
    """Update the counts, as far as one request may. Workers continue."""
    for _ in range(MAX_BATCHES):
        if not await app._session.arun(app._session.store.usage.count(begin=True)):
            return
