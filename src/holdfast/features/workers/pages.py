"""The workers page: list workers, and drain or stop one."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from holdfast.engine.job import EVERY_TENANT
from holdfast.features.tokens.model import Scope
from holdfast.features.workers.operations import named
from holdfast.server.pages import (
    action_route,
    check_all_tenants,
    choice_field,
    confirm,
    fields,
    page_route,
    redirect,
    text_field,
)
from holdfast.server.rendering import render, the_app

QUESTIONS = {
    "drain": "Drain worker {}? It claims no more jobs and exits when its running jobs have finished.",
    "stop": "Stop worker {}? Running jobs have its grace period; then they are released to the queue.",
}


async def index(request: Request) -> Response:
    return await render(request, "workers.html", workers=await the_app(request).workers.alist(), questions=QUESTIONS)


async def request_stop(request: Request) -> Response:
    app, form = the_app(request), await fields(request)
    mode, worker = choice_field(form, "mode", ("drain", "stop")), text_field(form, "worker", 255) or ""
    if any(running.tenant == EVERY_TENANT and named(running, worker) for running in await app.workers.alist()):
        check_all_tenants(request)  # one tenant may not stop a worker that serves every tenant
    if (confirmation := await confirm(request, QUESTIONS[mode].format(worker[:8]), back="/workers")) is not None:
        return confirmation
    result = await (app.workers.adrain(worker) if mode == "drain" else app.workers.astop(worker))
    message = f"Asked worker {result.id[:8]} to {mode}. It reads the request with its next heartbeat."
    return redirect(request, "/workers", message)


routes = [
    page_route("/workers", index),
    action_route("/workers", request_stop, Scope.OPERATE),
]
