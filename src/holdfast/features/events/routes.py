"""/events (list, stream, send), /subscriptions, /consumers."""

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

from holdfast.engine.job import Event
from holdfast.errors import EventsGone, StoreUnavailable
from holdfast.features.events.model import DEPTH, Consumer, Delivery, Subscription
from holdfast.features.events.read import check_gone
from holdfast.features.tokens.model import Scope
from holdfast.server.auth import Lasting
from holdfast.server.bodies import Because, Body, RetryPolicy, Span, Text
from holdfast.server.json_body import Router
from holdfast.server.live import FeedItem, LedgerFeed, ListenerBehind
from holdfast.server.parameters import (
    PAGE,
    After,
    Limit,
    NamePath,
    Page,
    TheApp,
    TheLive,
    allowed,
    allowed_one,
    and_more,
    as_json,
    with_more,
)
from holdfast.stores.requests import SentResult

router = Router(prefix="/events", tags=["events"])

KEEP_ALIVE = 15
LAST_EVENTS = 3.0
"""Seconds for a stream to end by itself when the server leaves."""
LONGEST_IN_A_HEAD = 2_000
PAGES = 20
"""Where few events fit what is asked for, so many pages are looked at before the answer says where to go on."""

Gaps = Annotated[
    Literal["tell", "skip"],
    Query(description="What to do where retention has removed unread events: refuse (410), or skip the gap."),
]
GONE: dict[int | str, dict[str, Any]] = {
    410: {"description": "`events_gone`: retention has removed events that were not read from this place."}
}
Several = Annotated[list[str] | None, Query(max_length=20)]


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which events: those for which all of it holds. Of each, several are alternatives."""

    kind: frozenset[str]
    type: frozenset[str]
    job: frozenset[str]
    queue: frozenset[str]

    async def fits(self, event: Event, live: LedgerFeed) -> bool:
        return (
            (not self.kind or event.kind in self.kind)
            and (not self.type or event.type in self.type)
            and (not self.job or event.job_id in self.job)
            and (not self.queue or await live.queue_of(event) in self.queue)
        )


async def _wanted(kind: Several = None, type: Several = None, job: Several = None, queue: Several = None) -> Wanted:
    return Wanted(*(frozenset(each or ()) for each in (kind, type, job, queue)))


Filter = Annotated[Wanted, Depends(_wanted)]


@router.get("", dependencies=[allowed(Scope.READ)], response_model=Page[Event], responses=GONE)
async def list_events(
    app: TheApp,
    live: TheLive,
    wanted: Filter,
    after: After = None,
    limit: Limit = PAGE,
    gaps: Gaps = "tell",
) -> Response:
    """List events in commit order. `next` is always set: request again from there to read what came since. Where
    [retention](../guides/retention.md) has removed unread events, the response is 410 `events_gone` with the number of
    the last missing one (`through`) and the `cursor` of the current end: read the current state again and continue
    from there, or skip the gap with `gaps=skip`."""
    client = app._session
    found: list[Event] = []
    place = after
    for _ in range(PAGES):
        page = await client.arun(client.store.ledger.read(place, limit, client.tenant))
        if place is not None and gaps == "tell":
            await client.arun(check_gone(client.store, place, client.tenant))
        for event in page:
            place = event.cursor
            if await wanted.fits(event, live):
                found.append(event)
            if len(found) == limit:
                break
        if not page or len(found) == limit:  # a page may be short and not the last
            break
    return Response(as_json({"items": found, "next": place}), media_type="application/json")


@router.get(
    "/stream",
    dependencies=[allowed(Scope.READ)],
    response_class=EventSourceResponse,
    responses={200: {"content": {"text/event-stream": {"schema": {"type": "string"}}}}, **GONE},
)
async def stream_events(
    request: Request,
    app: TheApp,
    live: TheLive,
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
    place = last_event_id or after
    tenant = app._session.tenant
    if place is None:
        place = await live.place(tenant)
    else:  # one that is none is refused now, not in the midst of the stream
        await app._session.arun(app._session.store.ledger.read(place, 1, tenant))
        if gaps == "tell":
            await app._session.arun(check_gone(app._session.store, place, tenant))
    told = _told(live, tenant, place, wanted, Lasting(request, Scope.READ), gaps == "skip")
    # Also with the head, which comes whole or not at all: of a stream that breaks right then the place is known. It
    # may be long where much is under way, and what lies in between takes no long heads.
    head = {"Holdfast-Cursor": place} if len(place) <= LONGEST_IN_A_HEAD else None
    # The stream ends by itself when the server leaves (``LedgerFeed``); sse-starlette would cancel it.
    leaving = anyio.Event()
    return EventSourceResponse(
        told, headers=head, ping=KEEP_ALIVE, sep="\n", shutdown_event=leaving, shutdown_grace_period=LAST_EVENTS
    )


async def _told(
    live: LedgerFeed, tenant: str, place: str, wanted: Wanted, lasting: Lasting, skip: bool
) -> AsyncIterator[ServerSentEvent]:
    yield ServerSentEvent(comment="following", retry=2_000, id=place)
    passed_over = False
    # Whoever comes back from its place is told of a gap, or waits until the database is there.
    with suppress(EventsGone, StoreUnavailable):
        async with aclosing(live.follow(tenant, after=place, skip=skip, marks=True)) as events:
            async for event in events:
                if not await lasting.holds():
                    return
                if isinstance(event, ListenerBehind):
                    yield ServerSentEvent(event="lagged", data="{}")
                elif isinstance(event, FeedItem):
                    # Else one that wants few would come back from long ago, and be told of what it did not want.
                    if passed_over:
                        yield ServerSentEvent(comment="passed over", id=event.cursor)
                    passed_over = False
                elif await wanted.fits(event, live):
                    yield ServerSentEvent(event=event.name, data=as_json(event).decode(), id=event.cursor)
                    passed_over = False
                else:
                    passed_over = True


class Tell(Body):
    """An event of an application's own."""

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


@router.post("", dependencies=[allowed_one(Scope.ENQUEUE)], status_code=201, response_model=SentResult)
async def send_event(app: TheApp, told: Tell) -> SentResult:
    """Send an application event. Jobs that wait for it resume."""
    return await app.asend_event(told.name, told.data, key=told.key, job=told.job)


subscription_router = Router(prefix="/subscriptions", tags=["subscriptions"])

ShownSubscription: Any = with_more(Subscription, "ShownSubscription", behind=int)


class Subscribe(Body):
    """Each event that fits makes one job of a kind, or from a template."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={"examples": [{"name": "receipts", "on": "order.paid", "kind": "send_receipt"}]},
    )

    name: Text
    on: Annotated[str, Field(max_length=1_000)]
    kind: Text | None = None
    template: Text | None = None
    of_kind: Text | None = None
    match: dict[str, Any] | None = None
    start: Literal["now", "beginning"] = "now"
    max_depth: int = Field(default=DEPTH, ge=1, le=1_000)
    queue: Text | None = None
    priority: int | None = Field(default=None, ge=-32_768, le=32_767)
    tags: list[Text] | None = Field(default=None, max_length=50)
    agent: Text | None = None
    executor: Text | None = None
    retry: Literal["exponential", "gentle", "hourly_cap"] | RetryPolicy | None = None
    retry_as: Literal["new_job"] | None = None
    delay: Span | None = None
    payload: dict[str, Any] | None = None

    def options(self) -> dict[str, Any]:
        chosen = {
            name: value for name, value in self.given().items() if value is not None and name not in ("name", "on")
        }
        if isinstance(chosen.get("retry"), RetryPolicy):
            chosen["retry"] = chosen["retry"].policy()
        return chosen


@subscription_router.get("", dependencies=[allowed(Scope.READ)], response_model=Page[Subscription])
async def list_subscriptions(app: TheApp) -> Page[Subscription]:
    """List subscriptions by name."""
    return Page(items=await app.subscriptions.alist())


@subscription_router.post("", dependencies=[allowed_one(Scope.OPERATE)], status_code=201, response_model=Subscription)
async def create_subscription(app: TheApp, body: Subscribe) -> Subscription:
    return await app.subscriptions.aset(body.name, body.on, **body.options())


class Go(Body):
    skip: bool = Field(default=False, description="Without what it has missed.")


@subscription_router.post("/{name:path}/pause", dependencies=[allowed_one(Scope.OPERATE)], response_model=Subscription)
async def pause_subscription(app: TheApp, name: NamePath, body: Because | None = None) -> Subscription:
    "Pause a subscription. Events that arrive meanwhile are kept until it resumes."
    reason = None if body is None else body.reason
    return await app.subscriptions.apause(name, reason=reason)


@subscription_router.post("/{name:path}/resume", dependencies=[allowed_one(Scope.OPERATE)], response_model=Subscription)
async def resume_subscription(app: TheApp, name: NamePath, body: Go | None = None) -> Subscription:
    """Resume a subscription, including the events that arrived meanwhile."""
    return await app.subscriptions.aresume(name, skip=body is not None and body.skip)


@subscription_router.get("/{name:path}/deliveries", dependencies=[allowed(Scope.READ)], response_model=Page[Delivery])
async def list_deliveries(
    app: TheApp, name: NamePath, refused: Annotated[bool, Query()] = False, limit: Limit = PAGE
) -> Page[Delivery]:
    """List the results of events, newest first; `refused` lists only events that created no job."""
    one = await app.subscriptions.aget(name)
    return Page(items=await app.subscriptions.adeliveries(one, refused=refused, limit=limit))


@subscription_router.get("/{name:path}", dependencies=[allowed(Scope.READ)], response_model=ShownSubscription)
async def show_subscription(app: TheApp, name: NamePath) -> Any:
    """Show a subscription and how many events it is behind, counted up to 10,000."""
    one = await app.subscriptions.aget(name)
    return and_more(one, behind=await app.subscriptions.abehind(one))


@subscription_router.delete("/{name:path}", dependencies=[allowed_one(Scope.OPERATE)], status_code=204)
async def delete_subscription(app: TheApp, name: NamePath) -> None:
    await app.subscriptions.aremove(name)


consumer_router = Router(prefix="/consumers", tags=["consumers"])


class Reset(Body):
    to: Literal["beginning", "now"] = "beginning"


@consumer_router.get("", dependencies=[allowed(Scope.READ)], response_model=Page[Consumer])
async def list_consumers(app: TheApp) -> Page[Consumer]:
    return Page(items=await app.events.aconsumers())


@consumer_router.post("/{name:path}/reset", dependencies=[allowed(Scope.OPERATE)], status_code=204)
async def reset_consumer(app: TheApp, name: NamePath, body: Reset | None = None) -> None:
    """Move a consumer to the beginning of the ledger, or to now."""
    await app.events.areset_consumer(name, (body or Reset()).to)


@consumer_router.delete("/{name:path}", dependencies=[allowed(Scope.OPERATE)], status_code=204)
async def remove_consumer(app: TheApp, name: NamePath) -> None:
    """Remove a consumer and its position."""
    await app.events.aremove_consumer(name)
