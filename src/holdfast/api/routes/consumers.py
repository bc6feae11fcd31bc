"""Consumers: who reads events with a place that is kept, and how far each has come."""

from __future__ import annotations

import asyncio
from typing import Literal

from holdfast.access import Scope
from holdfast.api.answers import NamePath, Page
from holdfast.api.asking import TheApp, allowed
from holdfast.api.bodies import Body
from holdfast.api.routing import Router
from holdfast.features.events.model import Consumer

router = Router(prefix="/consumers", tags=["consumers"])


class Reset(Body):
    to: Literal["beginning", "now"] = "beginning"


@router.get("", dependencies=[allowed(Scope.READ)], response_model=Page[Consumer])
async def list_consumers(app: TheApp) -> Page[Consumer]:
    return Page(items=await asyncio.to_thread(app.consumers.list))


@router.post("/{name:path}/reset", dependencies=[allowed(Scope.OPERATE)], status_code=204)
async def reset_consumer(app: TheApp, name: NamePath, body: Reset | None = None) -> None:
    """Have it read everything again, or nothing of what there is."""
    await asyncio.to_thread(app.consumers.reset, name, (body or Reset()).to)


@router.delete("/{name:path}", dependencies=[allowed(Scope.OPERATE)], status_code=204)
async def remove_consumer(app: TheApp, name: NamePath) -> None:
    """Forget its place."""
    await asyncio.to_thread(app.consumers.remove, name)
