"""Executors: who may execute, a list for the whole substrate."""

from __future__ import annotations

import asyncio

from holdfast.access import Scope
from holdfast.api.answers import NamePath, Page
from holdfast.api.asking import TheApp, allowed, allowed_whole
from holdfast.api.bodies import Body
from holdfast.api.routing import Router
from holdfast.features.agents.model import Executor, ExecutorRole

router = Router(prefix="/executors", tags=["executors"])


class As(Body):
    role: ExecutorRole = "executor"


@router.get("", dependencies=[allowed(Scope.READ)], response_model=Page[Executor])
async def list_executors(app: TheApp) -> Page[Executor]:
    """While the list is empty every label may execute."""
    return Page(items=await asyncio.to_thread(app.executors.list))


@router.put("/{label:path}", dependencies=[allowed_whole(Scope.ADMIN)], response_model=Executor)
async def add_executor(app: TheApp, label: NamePath, body: As | None = None) -> Executor:
    """An executor may take jobs; a generator plans work and never may."""
    return await asyncio.to_thread(app.executors.add, label, "executor" if body is None else body.role)


@router.delete("/{label:path}", dependencies=[allowed_whole(Scope.ADMIN)], status_code=204)
async def remove_executor(app: TheApp, label: NamePath) -> None:
    """What it runs may end; it takes nothing more."""
    await asyncio.to_thread(app.executors.remove, label)
