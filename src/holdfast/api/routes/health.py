"""Whether the process lives, and whether it can do its work. For everybody: they tell nothing else."""

from __future__ import annotations

import asyncio

from fastapi import APIRouter
from starlette.responses import PlainTextResponse, Response

from holdfast.access import Scope
from holdfast.access.problems import problem
from holdfast.api.asking import TheApp, allowed
from holdfast.domain.errors import HoldfastError
from holdfast.domain.health import Health

probes = APIRouter(tags=["health"])


@probes.get("/healthz", response_class=PlainTextResponse, summary="Is the process alive")
async def healthz() -> str:
    return "ok\n"


@probes.get("/readyz", response_class=PlainTextResponse, summary="Is the database there and up to date")
async def readyz(app: TheApp) -> Response:
    try:
        status = await asyncio.to_thread(app.store.schema)
    except HoldfastError as error:
        return problem(503, error.code, error.message, fix=error.fix)
    if not status.current:
        return problem(503, "not_migrated", "the database is not at this release's schema", fix="Run: holdfast migrate")
    return PlainTextResponse("ready\n")


router = APIRouter(prefix="/health", tags=["health"])


@router.get("", dependencies=[allowed(Scope.READ)], response_model=Health)
async def show_health(app: TheApp) -> Health:
    """How the work of this tenant stands, with a verdict (ok, warn, critical) and its reasons."""
    return await app.ahealth()
