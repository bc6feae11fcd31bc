"""Workers: what each serves and runs; drain or stop one."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from holdfast.engine.job import EVERY_TENANT
from holdfast.features.tokens.model import Scope
from holdfast.features.workers.operations import named
from holdfast.server.pages import ask_first, chosen, does, fields, go, said, shows, whole
from holdfast.server.rendering import render, the_app

QUESTIONS = {
    "drain": "Drain worker {}? It claims no more jobs and exits when its running jobs have finished.",
    "stop": "Stop worker {}? Running jobs have its grace period; then they are released to the queue.",
}


async def index(request: Request) -> Response:
    client = the_app(request)._session
    stands = await client.arun(client.store.health.workers(client.tenant))
    return await render(request, "workers.html", workers=stands.workers, questions=QUESTIONS)


async def request_stop(request: Request) -> Response:
    app, given = the_app(request), await fields(request)
    mode, worker = chosen(given, "mode", ("drain", "stop")), said(given, "worker", 255) or ""
    if any(each.tenant == EVERY_TENANT and named(each, worker) for each in await app.workers.alist()):
        whole(request)  # it serves every tenant, so it is not one tenant's to stop
    if (asks := await ask_first(request, QUESTIONS[mode].format(worker[:8]), back="/workers")) is not None:
        return asks
    found = await (app.workers.adrain(worker) if mode == "drain" else app.workers.astop(worker))
    told = f"Asked worker {found.id[:8]} to {mode}. It reads the request with its next heartbeat."
    return go(request, "/workers", told)


routes = [
    shows("/workers", index),
    does("/workers", request_stop, Scope.OPERATE),
]
