"""The tenants page: limits and usage. Users of one tenant see only its row."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from holdfast.app.internals import session_of
from holdfast.engine.job import EVERY_TENANT
from holdfast.features.tenants.model import Tenant, TenantOptions, fair_text
from holdfast.features.tokens.model import Scope
from holdfast.server.auth import identity_of
from holdfast.server.pages import (
    action_route,
    check_all_tenants,
    fields,
    option_fields,
    page_route,
    redirect,
    text_field,
)
from holdfast.server.rendering import render, the_app

COUNTED: Final = 10_000
LISTED: Final = 200


async def index(request: Request) -> Response:
    identity, client = identity_of(request), session_of(the_app(request))
    all_tenants = identity.operates_all
    scope = EVERY_TENANT if all_tenants else identity.tenant
    result = await client.arun(client.store.tenants.list(scope, most=COUNTED, names=LISTED + 1))
    tenants = result[:LISTED] if all_tenants else [_own(tenant) for tenant in result if tenant.name == scope]
    shared = await client.arun(client.store.tenants.fair_queues())
    pins = await client.arun(client.store.tenants.pins()) if all_tenants and identity.may(Scope.ADMIN) else ()
    return await render(
        request,
        "tenants.html",
        tenants=tenants,
        more=len(result) > LISTED,
        everybody=all_tenants,
        shared=fair_text(shared),
        pins=pins,
        counted=COUNTED,
    )


async def change(request: Request) -> Response:
    """Save the limits of a tenant. An empty field removes a limit."""
    check_all_tenants(request)
    form = await fields(request)
    options = option_fields(form, TenantOptions)
    if options["rate"] is None:
        del options["burst"]
    tenant = await the_app(request).tenants.aset(text_field(form, "name", 255) or "", **options)
    return redirect(request, "/tenants", f"Saved the limits of tenant {tenant.name}.")


async def share(request: Request) -> Response:
    check_all_tenants(request)
    form = await fields(request)
    queues = await the_app(request).tenants.aset_fair_queues(form.get("on") == "yes", queue=text_field(form, "queue"))
    return redirect(request, "/tenants", f"{fair_text(queues)}.")


def _own(tenant: Tenant) -> Tenant:
    """The tenant without its share, which would reveal how many other tenants there are."""
    changes: dict[str, Any] = {"share": None}
    return replace(tenant, **changes)


routes = [
    page_route("/tenants", index),
    action_route("/tenants", change, Scope.ADMIN),
    action_route("/tenants/fair", share, Scope.ADMIN),
]
