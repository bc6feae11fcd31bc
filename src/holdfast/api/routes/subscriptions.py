"""Subscriptions: events that make jobs."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Annotated, Any, Literal

from fastapi import Query
from pydantic import ConfigDict, Field

from holdfast.access import Scope
from holdfast.api.answers import PAGE, Limit, NamePath, Page, and_more, with_more
from holdfast.api.asking import TheApp, allowed, allowed_one
from holdfast.api.bodies import Because, Body, RetryPolicy, Span, Text
from holdfast.api.routing import Router
from holdfast.app import App
from holdfast.errors import NotFound
from holdfast.features.events.model import DEPTH, Delivery, Subscription

router = Router(prefix="/subscriptions", tags=["subscriptions"])

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


@router.get("", dependencies=[allowed(Scope.READ)], response_model=Page[Subscription])
async def list_subscriptions(app: TheApp) -> Page[Subscription]:
    """By their names."""
    return Page(items=await asyncio.to_thread(app.subscriptions.list))


@router.post("", dependencies=[allowed_one(Scope.OPERATE)], status_code=201, response_model=Subscription)
async def create_subscription(app: TheApp, body: Subscribe) -> Subscription:
    return await asyncio.to_thread(partial(app.subscriptions.create, body.name, body.on, **body.options()))


class Go(Body):
    skip: bool = Field(default=False, description="Without what it has missed.")


@router.post("/{name:path}/pause", dependencies=[allowed_one(Scope.OPERATE)], response_model=Subscription)
async def pause_subscription(app: TheApp, name: NamePath, body: Because | None = None) -> Subscription:
    """Make no more jobs; what happens meanwhile is kept for when it goes on."""
    reason = None if body is None else body.reason
    return await asyncio.to_thread(app.subscriptions.pause, name, reason=reason)


@router.post("/{name:path}/resume", dependencies=[allowed_one(Scope.OPERATE)], response_model=Subscription)
async def resume_subscription(app: TheApp, name: NamePath, body: Go | None = None) -> Subscription:
    """Go on with what was missed."""
    return await asyncio.to_thread(app.subscriptions.resume, name, skip=body is not None and body.skip)


@router.get("/{name:path}/deliveries", dependencies=[allowed(Scope.READ)], response_model=Page[Delivery])
async def list_deliveries(
    app: TheApp, name: NamePath, refused: Annotated[bool, Query()] = False, limit: Limit = PAGE
) -> Page[Delivery]:
    """What became of events, the newest first; `refused` only those that made no job."""
    one = await _found(app, name)
    return Page(items=await asyncio.to_thread(app.subscriptions.deliveries, one, refused=refused, limit=limit))


@router.get("/{name:path}", dependencies=[allowed(Scope.READ)], response_model=ShownSubscription)
async def show_subscription(app: TheApp, name: NamePath) -> Any:
    """With how many events it is behind, counted up to 10,000."""
    one = await _found(app, name)
    return and_more(one, behind=await asyncio.to_thread(app.subscriptions.behind, one))


@router.delete("/{name:path}", dependencies=[allowed_one(Scope.OPERATE)], status_code=204)
async def delete_subscription(app: TheApp, name: NamePath) -> None:
    await asyncio.to_thread(app.subscriptions.delete, name)


async def _found(app: App, name: str) -> Subscription:
    one = await asyncio.to_thread(app.subscriptions.get, name)
    if one is None:
        raise NotFound(f"there is no subscription {name} in this tenant", code="subscription_not_found")
    return one
