"""How it stands: what waits and for how long, what runs, what failed, and who works. Every number leads somewhere."""

from __future__ import annotations

import asyncio

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from holdfast.access import Scope, require
from holdfast.dashboard.rendering import render, the_app

GROUPS, QUEUES = 6, 12

# Where somebody who reads a reason goes on to; the rest is said on the page itself.
LEADS = {
    "no_worker": "/queues",
    "oldest_waits": "/jobs?state=queued",
    "backlog": "/jobs?state=queued",
    "unserved_kinds": "/queues",
    "dead_letters": "/dead-letters",
    "paused": "/queues",
    "limits_hold_many": "/jobs?state=queued",
    "gates_overdue": "/approvals",
    "schedules_late": "/schedules",
    "consumers_behind": "/system",
}


async def overview(request: Request) -> Response:
    require(request, Scope.READ)
    app = the_app(request)
    client, verbs = app.client, app.client.verbs
    health, stands, hour, groups = await asyncio.gather(
        app.ahealth(),
        client.arun(verbs.standing(client.tenant)),
        client.arun(verbs.hour(client.tenant)),
        app.dead_letters.agroups(order="count", limit=GROUPS),
    )
    waiting = sorted((each for each in stands.queues if each.waiting), key=lambda each: -(each.oldest_age_s or 0.0))
    return await render(
        request,
        "overview.html",
        health=health,
        workers=stands.workers,
        hour=hour,
        groups=groups,
        leads=LEADS,
        later=sum(each.scheduled for each in stands.queues),
        retrying=sum(each.retrying for each in stands.queues),
        waiting=waiting[:QUEUES],
        chart_rows=[(each.at, each.enqueued, each.succeeded, each.failed) for each in hour.minutes],
    )


routes = [Route("/", overview)]
