"""``POST /hooks/NAME``: where providers post. The signature is the credential, and what names the tenant is only the
endpoint whose secret signed; so these routes need no token, and their limits apply before anything is read."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response

from holdfast.app.internals import session_of
from holdfast.engine.job import DEFAULT_TENANT, EVERY_TENANT
from holdfast.engine.names import check_name
from holdfast.errors import InvalidInput
from holdfast.features.endpoints.model import MAX_BODY
from holdfast.features.endpoints.verification import SIGNATURE_HEADERS
from holdfast.server.problems import problem

router = APIRouter(tags=["hooks"], include_in_schema=False)


@router.post("/hooks/{name}")
async def receive(request: Request, name: str) -> Response:
    """Receive a message for the tenant of the service."""
    scope = session_of(request.app.state.app).scope
    return await _receive(request, name, DEFAULT_TENANT if scope == EVERY_TENANT else scope)


@router.post("/hooks/{tenant}/{name}")
async def receive_for_tenant(request: Request, tenant: str, name: str) -> Response:
    """Receive a message for a tenant. A service for one tenant has no others."""
    return await _receive(request, name, check_name(tenant, "tenant"))


async def _receive(request: Request, name: str, tenant: str) -> Response:
    if SIGNATURE_HEADERS.isdisjoint(request.headers.keys()):  # before the body and the database are read
        raise InvalidInput("there is no header with a signature", code="webhook_malformed")
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > MAX_BODY:
            return problem(413, "body_too_large", f"The request body is larger than {MAX_BODY:,} bytes.")
    receipt = await request.app.state.app.endpoints.areceive(name, request.headers.raw, bytes(body), tenant=tenant)
    if receipt.challenge is not None:
        return PlainTextResponse(receipt.challenge)
    accepted = {"event_id": receipt.event_id, "job_id": receipt.job_id, "duplicate": receipt.duplicate}
    return JSONResponse({key: value for key, value in accepted.items() if value is not None})
