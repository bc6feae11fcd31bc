"""Overview and system pages."""

from __future__ import annotations

import asyncio
import platform
from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from holdfast import __version__
from holdfast.features.agents.operations import ROLES
from holdfast.features.limits.operations import listed
from holdfast.features.tokens.model import Scope
from holdfast.server.auth import identity_of, require
from holdfast.server.pages import ask_first, chosen, does, fields, go, said, shows, whole
from holdfast.server.rendering import render, the_app
from holdfast.stores.flow import beside

SHOWN: Final = 200


async def index(request: Request) -> Response:
    app = the_app(request)
    client = app._session
    store, tenant = client.store, client.tenant
    schema, health = await app._store.aschema(), await app.health.aget()
    switches, retentions, rules, executors = await client.arun(
        beside(
            listed(client, tenant),
            store.retention.list(tenant),
            store.payload_rules.list(tenant),
            store.executors.list(),
        )
    )
    return await render(
        request,
        "system.html",
        version=__version__,
        python=platform.python_version(),
        schema=schema,
        health=health,
        switches=switches[:SHOWN],
        retentions=retentions[:SHOWN],
        rules=rules[:SHOWN],
        executors=executors[:SHOWN],
        roles=ROLES,
        whole=identity_of(request).runs_all,
    )


async def doctor(request: Request) -> Response:
    """It looks at the database closely, so it is asked for."""
    whole(request)
    findings = await asyncio.to_thread(the_app(request)._store.diagnose)
    return await render(request, "doctor.html", findings=findings)


async def admit(request: Request) -> Response:
    whole(request)
    given = await fields(request)
    role = chosen(given, "role", ROLES)
    label = said(given, "label", 255) or ""
    added = await the_app(request).executors.aset(label, role)  # type: ignore[arg-type]
    return go(request, "/system", f"{added.label} is on the list of executors.")


async def dismiss(request: Request) -> Response:
    whole(request)
    label = said(await fields(request), "label", 255) or ""
    question = f"Take {label} off the list of executors? It takes no more jobs."
    if (asks := await ask_first(request, question, back="/system")) is not None:
        return asks
    await the_app(request).executors.aremove(label)
    return go(request, "/system", f"{label} is off the list of executors.")


routes = [
    shows("/system", index),
    does("/system/doctor", doctor, Scope.ADMIN),
    does("/system/executors", admit, Scope.ADMIN),
    does("/system/executors/remove", dismiss, Scope.ADMIN),
]


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
    client, store = app._session, app._session.store
    health, stands, hour, groups = await asyncio.gather(
        app.health.aget(),
        client.arun(store.health.workers(client.tenant)),
        client.arun(store.health.last_hour(client.tenant)),
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


overview_routes = [Route("/", overview)]
