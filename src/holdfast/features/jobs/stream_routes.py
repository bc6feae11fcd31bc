"""``GET /jobs/{job_id}/streams/{name}/live``: an output stream as server-sent events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Annotated

import anyio
from fastapi import Header, Query, Request
from sse_starlette import EventSourceResponse, ServerSentEvent
from starlette.responses import Response

from holdfast.app import App
from holdfast.app.internals import session_of
from holdfast.engine.operation import adrive
from holdfast.errors import Refused, StoreUnavailable
from holdfast.features.jobs.following import FIRST_READ, SLOWEST_READ
from holdfast.features.jobs.handle import Handle
from holdfast.features.tokens.model import Scope
from holdfast.server.auth import StreamAccess
from holdfast.server.json_body import Router
from holdfast.server.parameters import Id, Name, TheApp, allowed, as_json

router = Router(tags=["jobs"])

KEEP_ALIVE = 15
STREAM_GRACE = 3.0


@router.get(
    "/jobs/{job_id}/streams/{name:path}/live",
    dependencies=[allowed(Scope.READ)],
    response_class=EventSourceResponse,
    responses={200: {"content": {"text/event-stream": {"schema": {"type": "string"}}}}},
)
async def follow_stream(
    request: Request,
    app: TheApp,
    job_id: Id,
    name: Name,
    after: Annotated[str | None, Query(max_length=100, description="The id of the last chunk.")] = None,
    last_event_id: Annotated[str | None, Header(max_length=100)] = None,
) -> Response:
    """Follow an output stream (server-sent events) until the job has ended. `event:` is `chunk`, `data:` the chunk as
    JSON, `id:` its position: a client that reconnects with it in `Last-Event-ID` (or `after`) misses nothing.
    `replaces` tells a client to forget the earlier chunks of the same `section`. `end` is the last message; a client
    closes the connection then. Sealed streams are refused, those of restricted kinds hidden."""
    start = last_event_id or after
    await app.jobs.astream(job_id, name, after=start)  # what is refused is refused now, not in the middle of the stream
    messages = _messages(app, job_id, name, start, StreamAccess(request, Scope.READ), request.app.state.stopping)
    return EventSourceResponse(
        messages, ping=KEEP_ALIVE, sep="\n", shutdown_event=anyio.Event(), shutdown_grace_period=STREAM_GRACE
    )


async def _messages(
    app: App, job_id: str, name: str, after: str | None, access: StreamAccess, stopping: asyncio.Event
) -> AsyncIterator[ServerSentEvent]:
    yield ServerSentEvent(comment="following", retry=2_000)
    job = await app.jobs.aget(job_id)
    handle: Handle[object] = Handle(job.id, job.tenant, False, None, session_of(app), lambda value: value)
    delay = FIRST_READ
    # On these errors the stream ends, and a client that reconnects gets them, or waits for the database.
    with suppress(StoreUnavailable, Refused), handle._waiting() as pause:
        while not stopping.is_set() and await access.holds():
            page = await app.jobs.astream(job.id, name, after=after)
            for chunk in page.chunks:
                yield ServerSentEvent(event="chunk", data=as_json(chunk).decode(), id=chunk.id)
            if page.ended:
                yield ServerSentEvent(event="end", data="{}")
                return
            after, delay = page.next, FIRST_READ if page.chunks else min(SLOWEST_READ, delay * 2)
            if not page.chunks:
                await adrive(pause(delay), handle._aperform)
