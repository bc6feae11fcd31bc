"""Limits: how many run at once, and how many are begun in a time."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Query
from pydantic import ConfigDict, Field

from holdfast.access import Scope
from holdfast.api.answers import Page
from holdfast.api.asking import TheApp, allowed, allowed_one
from holdfast.api.bodies import Body, Text
from holdfast.api.routing import Router
from holdfast.features.limits.model import Limit

router = Router(prefix="/limits", tags=["limits"])

WHAT = ("queue", "kind", "key", "resource", "agent")


class SetLimit(Body):
    """What is limited, one of the names or none of them for all jobs, and how far."""

    model_config = ConfigDict(
        extra="forbid", json_schema_extra={"examples": [{"queue": "mail", "concurrency": 5, "rate": "100/m"}]}
    )

    queue: Text | None = None
    kind: Text | None = None
    key: Text | None = None
    resource: Text | None = None
    agent: Text | None = None
    concurrency: int | None = Field(default=None, ge=0, le=2**31 - 1)
    rate: Annotated[str, Field(max_length=50)] | None = None
    burst: int | None = Field(default=None, ge=1, le=2**31 - 1)


@router.get("", dependencies=[allowed(Scope.READ)], response_model=Page[Limit])
async def list_limits(app: TheApp) -> Page[Limit]:
    """All of them, with how many jobs run under each and how many it holds back."""
    return Page(items=await app.limits.alist())


@router.put("", dependencies=[allowed_one(Scope.ADMIN)], response_model=Limit)
async def set_limit(app: TheApp, body: SetLimit) -> Limit:
    """It takes the place of what was set for the same before, at once."""
    given: dict[str, Any] = {name: value for name, value in body.given().items() if value is not None}
    return await app.limits.aset(**given)


Word = Annotated[str | None, Query(max_length=255)]


@router.delete("", dependencies=[allowed_one(Scope.ADMIN)], status_code=204)
async def remove_limit(
    app: TheApp,
    queue: Word = None,
    kind: Word = None,
    key: Word = None,
    resource: Word = None,
    agent: Word = None,
) -> None:
    """Without a name the limit on all jobs."""
    named = dict(zip(WHAT, (queue, kind, key, resource, agent), strict=True))
    await app.limits.aremove(**{name: value for name, value in named.items() if value is not None})
