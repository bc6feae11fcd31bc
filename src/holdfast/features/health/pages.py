"""The overview and system pages."""

from __future__ import annotations

import asyncio
import platform
from contextlib import suppress
from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from holdfast.app import App
from holdfast.app.internals import session_of
from holdfast.engine.job import EVERY_TENANT
from holdfast.engine.version import __version__
from holdfast.errors import HoldfastError
from holdfast.features.health.model import CAP, Health
from holdfast.features.health.statistics import RANGES, Activity, range_of
from holdfast.features.limits.operations import pauses_with_disabled_agents
from holdfast.features.tenants.model import Tenant
from holdfast.features.tokens.model import Scope
from holdfast.server.auth import Identity, identity_of, require
from holdfast.server.pages import action_route, check_all_tenants, choice_field, page_route
from holdfast.server.rendering import chart_rows, render, the_app

SHOWN: Final = 200


async def index(request: Request) -> Response:
    app = the_app(request)
    client = session_of(app)
    schema, health = await session_of(app).store.aschema(), await app.health.aget()
    pauses = await client.arun(pauses_with_disabled_agents(client, client.tenant))
    return await render(
        request,
        "system.html",
        version=__version__,
        python=platform.python_version(),
        schema=schema,
        health=health,
        reason_links=REASON_LINKS,
        pauses=[each for each in pauses if each.scope == "all"][:SHOWN],
        whole=identity_of(request).operates_all,
    )


async def doctor(request: Request) -> Response:
    """Diagnostics read the whole catalogue, so they run on request."""
    check_all_tenants(request)
    findings = await asyncio.to_thread(session_of(the_app(request)).store.diagnose)
    return await render(request, "doctor.html", findings=findings)


routes = [
    page_route("/system", index),
    action_route("/system/doctor", doctor, Scope.ADMIN),
]


GROUPS, QUEUES, TENANTS = 6, 12, 200
BY: Final = ("", "queue", "kind")

# The page that each reason of health links to.
REASON_LINKS = {
    "no_worker": "/workers",
    "expired_leases": "/workers",
    "oldest_waits": "/jobs?state=queued",
    "backlog": "/jobs?state=queued",
    "unserved_kinds": "/workers",
    "unserved_executors": "/workers",
    "long_running": "/jobs?state=in_progress",
    "dead_letters": "/dead-letters",
    "paused": "/limits",
    "limits_hold_many": "/limits",
    "approvals_overdue": "/approvals",
    "schedules_late": "/schedules",
    "consumers_behind": "/subscriptions",
}


async def overview(request: Request) -> Response:
    identity = require(request, Scope.READ)
    app = the_app(request)
    client, store = session_of(app), session_of(app).store
    query = request.query_params
    wanted, by = query.get("range", ""), choice_field(query, "by", BY) or None
    health, current, activity, groups = await asyncio.gather(
        app.health.aget(),
        client.arun(store.health.workers(client.tenant)),
        client.arun(store.health.activity(client.tenant, wanted if wanted in RANGES else "1h", by)),
        app.dead_letters.agroups(order="count", limit=GROUPS),
    )
    if wanted not in RANGES:
        activity = await _with_data(app, activity, by)
    waiting = sorted(
        (queue for queue in current.queues if queue.waiting), key=lambda queue: -(queue.oldest_age_s or 0.0)
    )
    tenants, elsewhere = await _tenants(app, identity)
    return await render(
        request,
        "overview.html",
        health=health,
        tenants=tenants,
        elsewhere=elsewhere,
        workers=current.workers,
        activity=activity,
        ranges=RANGES,
        by=by or "",
        groups=groups,
        reason_links=REASON_LINKS,
        later=sum(queue.scheduled for queue in current.queues),
        retrying=sum(queue.retrying for queue in current.queues),
        waiting=waiting[:QUEUES],
        series=tuple(activity.series) if by else ("Enqueued", "Succeeded", "Failed"),
        chart_rows=chart_rows(activity, by),
    )


async def _tenants(app: App, identity: Identity) -> tuple[list[Tenant], Health | None]:
    """For operators of all tenants: those with waiting jobs, the most first, but for the one that is shown; and the
    health of all of them if one is shown."""
    if not identity.operates_all:
        return [], None
    client, one = session_of(app), not identity.is_every_tenant
    found: list[Tenant] = []
    elsewhere: Health | None = None
    with client.serving(EVERY_TENANT, identity.actor), suppress(HoldfastError):  # a database login of one tenant
        found = await client.arun(client.store.tenants.list(EVERY_TENANT, CAP, TENANTS))
        elsewhere = await app.health.aget() if one and len(found) > 1 else None
    waiting = [each for each in found if each.pending and not (one and each.name == identity.tenant)]
    return sorted(waiting, key=lambda each: -each.pending), elsewhere


async def _with_data(app: App, hour: Activity, by: str | None) -> Activity:
    """Activity over the range that has data: 15 minutes while nothing is older, a longer range after a quiet hour."""
    session = session_of(app)
    client, store = session, session.store
    ages = [hour.now - point.at for point in hour.points if point.enqueued or point.succeeded or point.failed]
    better = range_of(ages) if ages else await client.arun(store.health.latest(client.tenant))
    if better == hour.range:
        return hour
    return await client.arun(store.health.activity(client.tenant, better, by))


overview_routes = [Route("/", overview)]
