"""The probes ``/livez`` and ``/readyz``, which need no authentication and reveal nothing else."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from fastapi import Request
from starlette.responses import PlainTextResponse, Response

from holdfast.errors import HoldfastError, SchemaMismatch
from holdfast.server.json_body import Router
from holdfast.server.problems import problem
from holdfast.stores.flow import in_thread

if TYPE_CHECKING:
    from holdfast.features.assembly import Store

probes = Router(tags=["health"])


@probes.get("/livez", response_class=PlainTextResponse, summary="Report that the process is alive")
async def livez() -> str:
    return "ok\n"


READY_FOR = 1.0
"""Seconds for which a success is cached: anyone may send the request, and each check opens a connection and writes."""


class Readiness:
    """Whether the database is reachable, migrated and writable. Concurrent requests share one check. A failure is not
    cached."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._checking: asyncio.Task[HoldfastError | None] | None = None
        self._until = 0.0

    async def fault(self) -> HoldfastError | None:
        checking, loop = self._checking, asyncio.get_running_loop()
        over = checking is None or checking.get_loop() is not loop or (checking.done() and loop.time() >= self._until)
        if checking is None or over:
            checking = self._checking = loop.create_task(self._run_check())
        return await asyncio.shield(checking)

    async def _run_check(self) -> HoldfastError | None:
        try:
            await in_thread(self._check)
        except HoldfastError as error:
            return error
        self._until = asyncio.get_running_loop().time() + READY_FOR
        return None

    def _check(self) -> None:
        if not self._store.schema().current:
            raise SchemaMismatch(
                "The database is not at this release's schema.", code="not_migrated", fix="Run: holdfast migrate"
            )
        self._store.check_writable()


@probes.get("/readyz", response_class=PlainTextResponse, summary="Report whether the database is migrated and writable")
async def readyz(request: Request) -> Response:
    readiness: Readiness = request.app.state.readiness
    error = await readiness.fault()
    if error is not None:
        return problem(503, error.code, error.message, fix=error.fix)
    return PlainTextResponse("ready\n")
