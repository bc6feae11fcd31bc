"""Tenants: what each uses of what it may. One tenant's own people see their own row, and nobody else's."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from holdfast.engine.job import EVERY_TENANT
from holdfast.features.tenants.model import MOST_PENDING, MOST_WEIGHT, Tenant, TenantOptions, fair_text
from holdfast.features.tokens.model import Scope
from holdfast.server.auth import identity_of
from holdfast.server.pages import does, fields, go, said, shows, whole, whole_number
from holdfast.server.rendering import render, the_app

COUNTED: Final = 10_000
LISTED: Final = 200


async def index(request: Request) -> Response:
    identity, client = identity_of(request), the_app(request)._session
    everybody = identity.runs_all
    whose = EVERY_TENANT if everybody else identity.tenant
    found = await client.arun(client.store.tenants.list(whose, most=COUNTED, names=LISTED + 1))
    tenants = [each if everybody else _own(each) for each in found[:LISTED] if everybody or each.name == whose]
    shared = await client.arun(client.store.tenants.fair_queues())
    pins = await client.arun(client.store.tenants.pins()) if everybody and identity.may(Scope.ADMIN) else ()
    return await render(
        request,
        "tenants.html",
        tenants=tenants,
        more=len(found) > LISTED,
        everybody=everybody,
        shared=fair_text(shared),
        pins=pins,
        counted=COUNTED,
    )


async def change(request: Request) -> Response:
    """An empty field removes the limit."""
    whole(request)
    given = await fields(request)
    rate = said(given, "rate", 50)
    terms: TenantOptions = {
        "title": said(given, "title", 200),
        "max_pending": whole_number(given, "max_pending", 0, MOST_PENDING),
        "max_running": whole_number(given, "max_running", 0, 1_000_000),
        "weight": whole_number(given, "weight", 1, MOST_WEIGHT),
        "rate": rate,
    }
    if rate is not None:
        terms["burst"] = whole_number(given, "burst", 1, 1_000_000)
    tenant = await the_app(request).tenants.aset(said(given, "name", 255) or "", **terms)
    return go(request, "/tenants", f"Saved the limits of tenant {tenant.name}.")


async def share(request: Request) -> Response:
    whole(request)
    given = await fields(request)
    queues = await the_app(request).tenants.aset_fair_queues(given.get("on") == "yes", queue=said(given, "queue"))
    return go(request, "/tenants", f"{fair_text(queues)}.")


def _own(tenant: Tenant) -> Tenant:
    """Its share is one of all, which are not its to know."""
    changes: dict[str, Any] = {"share": None}
    return replace(tenant, **changes)


routes = [
    shows("/tenants", index),
    does("/tenants", change, Scope.ADMIN),
    does("/tenants/fair", share, Scope.ADMIN),
]
