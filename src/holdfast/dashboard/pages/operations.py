"""Bulk operations: which there are, how far each has come, and ending one early."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from holdfast.access import Scope, require
from holdfast.dashboard.acting import ask_first, go
from holdfast.dashboard.rendering import render, the_app
from holdfast.engine.ids import parse_id
from holdfast.errors import NotFound
from holdfast.features.dead_letters.model import Operation

PAGE = 50


async def list_operations(request: Request) -> Response:
    require(request, Scope.READ)
    before = request.query_params.get("before")
    found = await the_app(request).operations.alist(limit=PAGE + 1, before=parse_id(before) if before else None)
    return await render(request, "operations.html", operations=found[:PAGE], more=len(found) > PAGE, before=before)


async def show(request: Request) -> Response:
    require(request, Scope.READ)
    return await render(request, "operation.html", operation=await _operation(request))


async def cancel(request: Request) -> Response:
    require(request, Scope.OPERATE)
    operation = await _operation(request)
    page = f"/operations/{operation.id}"
    question = f"End this operation? What it has done to {operation.done:,} jobs stays done."
    if (asked := await ask_first(request, question, back=page)) is not None:
        return asked
    await the_app(request).operations.acancel(operation.id)
    return go(request, page, "It ends here.")


async def _operation(request: Request) -> Operation:
    id = parse_id(request.path_params["id"])
    found = await the_app(request).operations.aget(id)
    if found is None:
        raise NotFound(f"there is no operation {id} in this tenant", code="operation_not_found")
    return found


routes = [
    Route("/operations", list_operations),
    Route("/operations/{id}", show),
    Route("/operations/{id}/cancel", cancel, methods=["POST"]),
]
