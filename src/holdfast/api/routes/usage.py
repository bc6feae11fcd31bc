"""Usage: what ran, for how long and at what cost, by tenant, kind and day."""

from __future__ import annotations

import asyncio
from datetime import date
from typing import Annotated

from fastapi import Query

from holdfast.access import Scope
from holdfast.api.answers import Page
from holdfast.api.asking import TheApp, allowed
from holdfast.api.routing import Router
from holdfast.features.retention.model import By, Usage

router = Router(prefix="/usage", tags=["usage"])

PARTS = 1_000
"""How many parts of the ledger one request counts at most."""


@router.get("", dependencies=[allowed(Scope.READ)], response_model=Page[Usage])
async def show_usage(
    app: TheApp,
    by: Annotated[list[By] | None, Query(max_length=3)] = None,
    since: date | None = None,
    until: date | None = None,
    kind: Annotated[str | None, Query(max_length=255)] = None,
) -> Page[Usage]:
    """Sums, by what is named (by kind and day, where nothing is). Days are UTC, both included. Workers count; the
    first time somebody has to ask for it (`POST /usage/count`)."""
    groups: list[By] = ["kind", "day"] if by is None else by
    return Page(items=await asyncio.to_thread(app.usage, by=groups, since=since, until=until, kind=kind, count=False))


@router.post("/count", dependencies=[allowed(Scope.OPERATE)], status_code=204)
async def count_usage(app: TheApp) -> None:
    """Count what has not been counted yet, so much as one request may; workers go on with it."""
    for _ in range(PARTS):
        if not await app.client.arun(app.client.verbs.count_usage(begin=True)):
            return
