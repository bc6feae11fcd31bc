"""``/usage``."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query
from pydantic import BaseModel

from holdfast.app.internals import session_of
from holdfast.features.retention.model import By, Usage
from holdfast.features.tokens.model import Scope
from holdfast.server.json_body import Router
from holdfast.server.parameters import Page, ShortText, TheApp, allowed

router = Router(prefix="/usage", tags=["usage"])

MAX_BATCHES = 1_000
"""Batches of events that one request counts."""


class CountedUsage(BaseModel):
    """The number of events that were counted."""

    counted: int


@router.get("", dependencies=[allowed(Scope.READ)], response_model=Page[Usage])
async def show_usage(
    app: TheApp,
    by: Annotated[list[By] | None, Query(max_length=3)] = None,
    since: ShortText = None,
    until: ShortText = None,
    kind: ShortText = None,
) -> Page[Usage]:
    """Show usage, grouped by kind and day unless `by` says otherwise. Days are UTC, both inclusive. Workers update the
    counts; request the first count with `POST /usage/count`."""
    groups: list[By] = ["kind", "day"] if by is None else by
    return Page(items=await app.usage.alist(by=groups, since=since, until=until, kind=kind, count=False))


@router.post("/count", dependencies=[allowed(Scope.OPERATE)], response_model=CountedUsage)
async def count_usage(app: TheApp) -> CountedUsage:
    """Update the counts, as far as one request may. Workers continue."""
    session = session_of(app)
    total = 0
    for _ in range(MAX_BATCHES):
        if not (done := await session.arun(session.store.usage.count(begin=True))):
            break
        total += done
    return CountedUsage(counted=total)
