"""/tenants, for callers who may act for every tenant. A tenant's token sees only its own."""

from __future__ import annotations

from typing import Any

from holdfast.errors import NotFound
from holdfast.features.tenants.model import Tenant
from holdfast.features.tenants.operations import Tenants
from holdfast.features.tokens.model import Scope
from holdfast.server.auth import Identity
from holdfast.server.derived import routes
from holdfast.server.parameters import Caller, Page, TheApp, allowed


def _refuse_others(who: Identity, inputs: dict[str, Any]) -> None:
    if not who.operates_all and inputs["name"] != who.tenant:
        raise NotFound(f"no tenant {inputs['name']} is registered or has jobs", code="tenant_not_found")


router = routes("tenants", Tenants, get=_refuse_others)


@router.get("/tenants", dependencies=[allowed(Scope.READ)], response_model=Page[Tenant])
async def list_tenants(app: TheApp, who: Caller) -> Page[Tenant]:
    """List tenants that are registered or have jobs, by name, with their usage and limits. A tenant's token sees only
    itself."""
    tenants = await app.tenants.alist()
    return Page(items=[tenant for tenant in tenants if who.operates_all or tenant.name == who.tenant])
