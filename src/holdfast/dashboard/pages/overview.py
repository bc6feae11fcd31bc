"""How it stands: what waits and for how long, what runs, what failed, and who works. Every number leads somewhere."""

from __future__ import annotations

import asyncio

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from holdfast.access import Scope, require
from holdfast.dashboard.rendering import render, the_app

GROUPS = 6

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
    health, pulse, groups = await asyncio.gather(
        app.ahealth(),
        app.client.arun(app.client.verbs.pulse(app.client.tenant)),
        app.dead_letters.agroups(order="count", limit=GROUPS),
    )
    rows = [(minute.at, minute.enqueued, minute.succeeded, minute.failed) for minute in pulse.minutes]
    return render(request, "overview.html", health=health, pulse=pulse, groups=groups, leads=LEADS, chart_rows=rows)


routes = [Route("/", overview)]
