"""Queues: whether waiting counts in them. How full they are, health says."""

from __future__ import annotations

from pydantic import Field

from holdfast.access import Scope
from holdfast.api.answers import NamePath, Page
from holdfast.api.asking import TheApp, allowed, allowed_one
from holdfast.api.bodies import Body, Span
from holdfast.api.routing import Router
from holdfast.features.limits.model import QueueSetting

router = Router(prefix="/queues", tags=["queues"])


class Aging(Body):
    every: Span | None = Field(description="How long a job waits for each step; null: waiting does not count.")
    step: int = Field(default=1, ge=1, le=32_767)
    most: int = Field(default=100, ge=-32_768, le=32_767)


@router.get("", dependencies=[allowed(Scope.READ)], response_model=Page[QueueSetting])
async def list_queue_settings(app: TheApp) -> Page[QueueSetting]:
    """Those that have settings of their own."""
    return Page(items=await app.queues.alist())


@router.put("/{name:path}/aging", dependencies=[allowed_one(Scope.ADMIN)], response_model=QueueSetting | None)
async def age_queue(app: TheApp, name: NamePath, body: Aging) -> QueueSetting | None:
    """Raise the priority of jobs by `step` for each `every` that they wait, up to `most`."""
    return await app.queues.aage(name, every=body.every, step=body.step, most=body.most)
