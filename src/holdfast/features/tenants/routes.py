"""``/tenants``: limits and usage of tenants, for callers who may act for every tenant. A tenant's token sees only its
own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import ConfigDict, Field

from holdfast.errors import NotFound
from holdfast.features.tenants.model import MOST_PENDING, Pin, Tenant
from holdfast.features.tokens.model import Scope
from holdfast.server.bodies import Body, Text
from holdfast.server.json_body import Router
from holdfast.server.parameters import Caller, NamePath, Page, TheApp, allowed, allowed_all_tenants

router = Router(prefix="/tenants", tags=["tenants"])


class SetTenant(Body):
    """An omitted field does not change; null removes a setting."""

    model_config = ConfigDict(
        extra="forbid", json_schema_extra={"examples": [{"title": "Acme", "max_pending": 100_000, "weight": 2}]}
    )

    title: Text | None = None
    max_pending: int | None = Field(default=None, ge=0, le=MOST_PENDING)
    max_running: int | None = Field(default=None, ge=0, le=1_000_000)
    rate: Annotated[str, Field(max_length=50)] | None = None
    burst: int | None = Field(default=None, ge=1, le=2**31 - 1)
    weight: int | None = Field(default=None, ge=1, le=2**31 - 1)


class SetFairQueues(Body):
    on: bool = True
    queue: Text | None = None


class RequireRegistration(Body):
    on: bool = True


class PinLogin(Body):
    tenant: Text


@dataclass(frozen=True, slots=True)
class Registration:
    """Whether a tenant must be registered before it can have jobs."""

    registered_only: bool


@dataclass(frozen=True, slots=True)
class Shared:
    """Which queues are shared fairly; ``*`` means all, ``*`` with ``-mail`` all but mail."""

    fair: list[str]


@router.get("", dependencies=[allowed(Scope.READ)], response_model=Page[Tenant])
async def list_tenants(app: TheApp, who: Caller) -> Page[Tenant]:
    """List tenants that are registered or have jobs, by name. A tenant's token sees only itself."""
    tenants = await app.tenants.alist()
    return Page(items=[tenant for tenant in tenants if who.operates_all or tenant.name == who.tenant])


@router.get("/fair", dependencies=[allowed_all_tenants(Scope.READ)], response_model=Shared)
async def fair_queues(app: TheApp) -> Shared:
    return Shared(await app.tenants.afair_queues())


@router.post("/fair", dependencies=[allowed_all_tenants(Scope.ADMIN)], response_model=Shared)
async def share_queues(app: TheApp, body: SetFairQueues) -> Shared:
    """Turn fair sharing between tenants on or off, for one queue or all."""
    return Shared(await app.tenants.aset_fair_queues(body.on, queue=body.queue))


@router.get("/registered-only", dependencies=[allowed_all_tenants(Scope.READ)], response_model=Registration)
async def registered_only(app: TheApp) -> Registration:
    return Registration(await app.tenants.aregistration_required())


@router.post("/registered-only", dependencies=[allowed_all_tenants(Scope.ADMIN)], response_model=Registration)
async def require_registration(app: TheApp, body: RequireRegistration) -> Registration:
    """Turn on or off that only registered tenants may enqueue."""
    await app.tenants.aset_registration_required(body.on)
    return Registration(body.on)


@router.get("/pins", dependencies=[allowed_all_tenants(Scope.ADMIN)], response_model=Page[Pin])
async def list_pins(app: TheApp) -> Page[Pin]:
    """List database logins that are pinned to one tenant."""
    return Page(items=list(await app.tenants.apins()))


@router.put("/pins/{name:path}", dependencies=[allowed_all_tenants(Scope.ADMIN)], response_model=Pin)
async def pin_login(app: TheApp, name: NamePath, body: PinLogin) -> Pin:
    """Pin a database login to one tenant. Refused where the database has no logins."""
    return await app.tenants.apin(name, body.tenant)


@router.delete("/pins/{name:path}", dependencies=[allowed_all_tenants(Scope.ADMIN)], status_code=204)
async def unpin_login(app: TheApp, name: NamePath) -> None:
    """Remove the pin of a database login."""
    await app.tenants.aunpin(name)


@router.get("/{name:path}", dependencies=[allowed(Scope.READ)], response_model=Tenant)
async def show_tenant(app: TheApp, who: Caller, name: NamePath) -> Tenant:
    if not who.operates_all and name != who.tenant:
        raise NotFound(f"no tenant {name} is registered or has jobs", code="tenant_not_found")
    return await app.tenants.aget(name)


@router.put("/{name:path}", dependencies=[allowed_all_tenants(Scope.ADMIN)], response_model=Tenant)
async def set_tenant(app: TheApp, name: NamePath, body: SetTenant) -> Tenant:
    """Register a tenant or change the given settings."""
    return await app.tenants.aset(name, **body.given())


@router.delete("/{name:path}", dependencies=[allowed_all_tenants(Scope.ADMIN)], status_code=204)
async def delete_tenant(app: TheApp, name: NamePath) -> None:
    """Remove the tenant's settings. Its jobs stay."""
    await app.tenants.aremove(name)
