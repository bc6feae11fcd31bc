"""The audit pages: configuration changes, events of jobs, and the verification of the chain."""

from __future__ import annotations

import asyncio
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from holdfast.app.internals import session_of
from holdfast.errors import Conflict
from holdfast.features.audit.model import Anchor, Report
from holdfast.features.audit.store import ActionFilter, EventFilter
from holdfast.features.tokens.model import Scope
from holdfast.server.auth import identity_of
from holdfast.server.pages import (
    PAGE,
    action_route,
    check_all_tenants,
    choice_field,
    fields,
    integer_field,
    page_route,
    text_field,
    time_field,
)
from holdfast.server.rendering import render, the_app

MOST_SEALS: Final = 5_000
DEFAULT_SEALS: Final = 200
_verifying = asyncio.Lock()


async def index(request: Request) -> Response:
    query, client = request.query_params, session_of(the_app(request))
    show = choice_field(query, "show", ("actions", "events"))
    before = integer_field(query, "before", 1, 2**62)
    actor, event_type, since = (
        text_field(query, "actor", 255),
        text_field(query, "type", 50),
        time_field(query, "since"),
    )
    subject = text_field(query, "subject", 255)
    actions, events, following = [], [], None
    if show == "actions":
        wanted = ActionFilter(
            tenant=client.tenant,
            subject=subject,
            name=text_field(query, "name", 255),
            actor=actor,
            type=event_type,
            since=since,
            before=before,
            limit=PAGE + 1,
        )
        actions = await client.arun(client.store.audit.actions(wanted))
        following = actions[PAGE - 1].seq if len(actions) > PAGE else None
    else:
        page = await client.arun(
            client.store.audit.recent_events(
                EventFilter(
                    tenant=client.tenant,
                    kind=subject,
                    actor=actor,
                    type=event_type,
                    since=since,
                    before=before,
                    limit=PAGE,
                )
            )
        )
        events, following = page.events, page.before
    return await render(
        request,
        "audit.html",
        show=show,
        actions=actions[:PAGE],
        events=events,
        following=following,
        given={name: query.get(name, "") for name in ("actor", "type", "subject", "name", "since")},
        anchor=await _anchor(request),
        usual=DEFAULT_SEALS,
        most=MOST_SEALS,
    )


async def verify(request: Request) -> Response:
    """Verify the newest seals in a thread, one verification at a time, so that the cost is bounded."""
    check_all_tenants(request)
    form = await fields(request)
    seals = integer_field(form, "seals", 1, MOST_SEALS) or DEFAULT_SEALS
    anchor = text_field(form, "anchor", 200)
    if _verifying.locked():
        raise Conflict("A verification is already running.", code="verify_running", fix="Try again in a moment.")
    async with _verifying:
        newest = await _anchor(request)
        begin = 1 if newest is None else max(1, newest.number - seals + 1)
        report: Report = await asyncio.to_thread(
            the_app(request).audit.verify, begin=begin, anchors=[] if anchor is None else [anchor]
        )
    return await render(request, "verified.html", report=report, begin=begin)


async def _anchor(request: Request) -> Anchor | None:
    """The newest seal, if the caller may act for every tenant."""
    if not identity_of(request).operates_all:
        return None
    client = session_of(the_app(request))
    newest = await client.arun(client.store.audit.get_seal())
    return None if newest is None else Anchor(newest.number, newest.digest)


routes = [page_route("/audit", index), action_route("/audit/verify", verify, Scope.ADMIN)]
