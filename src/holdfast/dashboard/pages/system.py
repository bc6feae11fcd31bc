"""The system: what runs here, what is paused, for how long things are kept, who may execute."""

from __future__ import annotations

import asyncio
import platform
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from holdfast import __version__
from holdfast.access import Scope, identity_of
from holdfast.dashboard.acting import ask_first, go
from holdfast.dashboard.asking import chosen, fields, said
from holdfast.dashboard.rendering import render, the_app
from holdfast.dashboard.routing import does, shows, whole
from holdfast.features.agents.operations import ROLES
from holdfast.features.limits.operations import listed
from holdfast.stores.flow import beside

SHOWN: Final = 200


async def index(request: Request) -> Response:
    app = the_app(request)
    client = app.client
    verbs, tenant = client.verbs, client.tenant
    schema, health = await app.store.aschema(), await app.ahealth()
    switches, retentions, rules, executors = await client.arun(
        beside(listed(client, tenant), verbs.retentions(tenant), verbs.payload_rules(tenant), verbs.executors())
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
    findings = await asyncio.to_thread(the_app(request).store.diagnose)
    return await render(request, "doctor.html", findings=findings)


async def admit(request: Request) -> Response:
    whole(request)
    given = await fields(request)
    role = chosen(given, "role", ROLES)
    label = said(given, "label", 255) or ""
    added = await asyncio.to_thread(the_app(request).executors.add, label, role)  # type: ignore[arg-type]
    return go(request, "/system", f"{added.label} is on the list of executors.")


async def dismiss(request: Request) -> Response:
    whole(request)
    label = said(await fields(request), "label", 255) or ""
    question = f"Take {label} off the list of executors? It takes no more jobs."
    if (asks := await ask_first(request, question, back="/system")) is not None:
        return asks
    await asyncio.to_thread(the_app(request).executors.remove, label)
    return go(request, "/system", f"{label} is off the list of executors.")


routes = [
    shows("/system", index),
    does("/system/doctor", doctor, Scope.ADMIN),
    does("/system/executors", admit, Scope.ADMIN),
    does("/system/executors/remove", dismiss, Scope.ADMIN),
]
