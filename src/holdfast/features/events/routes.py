"""``/events`` (list, stream, send), ``/subscriptions`` and ``/consumers``."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing, suppress
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import anyio
from fastapi import Depends, Header, Query, Request
from pydantic import ConfigDict, Field
from sse_starlette import EventSourceResponse, ServerSentEvent
from starlette.responses import Response

from holdfast.app.internals import session_of
from holdfast.engine.job import Event
from holdfast.errors import EventsGone, StoreUnavailable
from holdfast.features.events.operations import Consumers, Subscriptions, check_events_gone
from holdfast.features.tokens.model import Scope
from holdfast.server.auth import StreamAccess
from holdfast.server.bodies import Body
from holdfast.server.derived import routes
from holdfast.server.json_body import Router
from holdfast.server.live import FeedItem, LedgerFeed, ListenerBehind
from holdfast.server.parameters import (
    PAGE,
    After,
    Limit,
    Page,
    TheApp,
    TheFeed,
    allowed,
    allowed_one_tenant,
    as_json,
)
from holdfast.stores.requests import SentResult

router = Router(prefix="/events", tags=["events"])

KEEP_ALIVE = 15
STREAM_GRACE = 3.0
"""Seconds in which a stream can end by itself when the server shuts down."""
LONGEST_HEADER = 2_000
MAX_PAGES = 20
"""Pages that one request reads. If few events match, the response is short and ``next`` is where to continue."""

Gaps = Annotated[
    Literal["tell", "skip"],
    Query(description="What to do where retention has removed unread events: refuse (410), or skip the gap."),
]
GONE: dict[int | str, dict[str, Any]] = {
    410: {"description": "`events_gone`: retention has removed unread events after this position."}
}
Several = Annotated[list[str] | None, Query(max_length=20)]


@dataclass(frozen=True, slots=True)
class EventSelection:
    """Which events: those that match every field. Several values of a field are alternatives."""

    kind: frozenset[str]
    type: frozenset[str]
    job: frozenset[str]
    queue: frozenset[str]

    async def matches(self, event: Event, live: LedgerFeed) -> bool:
        return (
            (not self.kind or event.kind in self.kind)
            and (not self.type or event.type in self.type)
            and (not self.job or event.job_id in self.job)
            and (not self.queue or await live.queue_of(event) in self.queue)
        )


async def _selection(
    kind: Several = None, type: Several = None, job: Several = None, queue: Several = None
) -> EventSelection:
    return EventSelection(*(frozenset(values or ()) for values in (kind, type, job, queue)))


Filter = Annotated[EventSelection, Depends(_selection)]


@router.get("", dependencies=[allowed(Scope.READ)], response_model=Page[Event], responses=GONE)
async def list_events(
    app: TheApp,
    live: TheFeed,
    wanted: Filter,
    after: After = None,
    limit: Limit = PAGE,
    gaps: Gaps = "tell",
) -> Response:
    """List events in commit order. `next` is always set: request again from there to read what came since. Where
    [retention](../guides/retention.md) has removed unread events, the response is 410 `events_gone` with the number of
    the last missing one (`through`) and the `cursor` of the current end: read the current state again and continue
    from there, or skip the gap with `gaps=skip`."""
    client = session_of(app)
    events: list[Event] = []
    position = after
    for _ in range(MAX_PAGES):
        page = await client.arun(client.store.ledger.read(position, limit, client.tenant))
        if position is not None and gaps == "tell":
            await client.arun(check_events_gone(client.store, position, client.tenant))
        for event in page:
            position = event.cursor
            if await wanted.matches(event, live):
                events.append(event)
            if len(events) == limit:
                break
        if not page or len(events) == limit:  # a page may be short and not the last
            break
    return Response(as_json({"items": events, "next": position}), media_type="application/json")


@router.get(
    "/stream",
    dependencies=[allowed(Scope.READ)],
    response_class=EventSourceResponse,
    responses={200: {"content": {"text/event-stream": {"schema": {"type": "string"}}}}, **GONE},
)
async def stream_events(
    request: Request,
    app: TheApp,
    live: TheFeed,
    wanted: Filter,
    after: After = None,
    last_event_id: Annotated[str | None, Header(max_length=8_000)] = None,
    gaps: Gaps = "tell",
) -> Response:
    """Stream events as they are committed (server-sent events). `event:` is the event type such as `job.succeeded`,
    `data:` the event as JSON, `id:` its cursor. A client that reconnects with it in `Last-Event-ID` (or `after`) misses
    nothing and may receive one event twice. Without either, the stream starts now. `lagged` means that the client was
    too slow and that the next events are read from its own position. A message with only an `id:` moves the position
    past filtered events. The stream ends with the token. A position from which retention has removed events is 410, as
    for the list, unless `gaps=skip`."""
    session = session_of(app)
    position = last_event_id or after
    tenant = session.tenant
    if position is None:
        position = await live.place(tenant)
    else:  # an invalid cursor is refused now, not in the middle of the stream
        await session.arun(session.store.ledger.read(position, 1, tenant))
        if gaps == "tell":
            await session.arun(check_events_gone(session.store, position, tenant))
    messages = _messages(live, tenant, position, wanted, StreamAccess(request, Scope.READ), gaps == "skip")
    # The position is also in a header: headers arrive completely or not at all, so a client whose stream breaks right
    # after them can continue. While many transactions are open a cursor is long, and proxies refuse long headers.
    headers = {"Holdfast-Cursor": position} if len(position) <= LONGEST_HEADER else None
    # The stream ends by itself when the server shuts down (``LedgerFeed``); sse-starlette would cancel it.
    shutdown = anyio.Event()
    return EventSourceResponse(
        messages,
        headers=headers,
        ping=KEEP_ALIVE,
        sep="\n",
        shutdown_event=shutdown,
        shutdown_grace_period=STREAM_GRACE,
    )


async def _messages(
    live: LedgerFeed, tenant: str, position: str, wanted: EventSelection, lasting: StreamAccess, skip: bool
) -> AsyncIterator[ServerSentEvent]:
    yield ServerSentEvent(comment="following", retry=2_000, id=position)
    passed_over = False
    # On these errors the stream ends. A client that reconnects gets the error, or waits for the database.
    with suppress(EventsGone, StoreUnavailable):
        async with aclosing(live.follow(tenant, after=position, skip=skip, marks=True)) as events:
            async for event in events:
                if not await lasting.holds():
                    return
                if isinstance(event, ListenerBehind):
                    yield ServerSentEvent(event="lagged", data="{}")
                elif isinstance(event, FeedItem):
                    # Without this, a client whose filter matches few events would reconnect with an old position and
                    # read all filtered events again.
                    if passed_over:
                        yield ServerSentEvent(comment="passed over", id=event.cursor)
                    passed_over = False
                elif await wanted.matches(event, live):
                    yield ServerSentEvent(event=event.name, data=as_json(event).decode(), id=event.cursor)
                    passed_over = False
                else:
                    passed_over = True


class SendEvent(Body):
    """An application event."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={"examples": [{"name": "order.paid", "data": {"order": 7}, "key": "order-7-paid"}]},
    )

    name: str = Field(max_length=255)
    data: dict[str, Any] | None = None
    key: str | None = Field(
        default=None, max_length=255, description="Idempotency key: sending it again creates no second event."
    )
    job: str | None = Field(default=None, max_length=100, description="Send it only to this job.")


@router.post("", dependencies=[allowed_one_tenant(Scope.ENQUEUE)], status_code=201, response_model=SentResult)
async def send_event(app: TheApp, body: SendEvent) -> SentResult:
    """Send an application event. Jobs that wait for it resume."""
    return await app.asend_event(body.name, body.data, key=body.key, job=body.job)


subscription_router = routes("subscriptions", Subscriptions)
consumer_router = routes("consumers", Consumers)
