"""``/kinds``, ``/event-types`` and ``/policies``."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import ConfigDict, Field

from holdfast.features.registry.model import (
    Empty,
    EventType,
    Policies,
    RegisteredKind,
    Unknown,
    UnregisteredName,
)
from holdfast.features.tokens.model import Scope
from holdfast.server.bodies import Body, Text
from holdfast.server.json_body import Router
from holdfast.server.parameters import NamePath, Page, ShortText, TheApp, allowed, allowed_all_tenants

kind_router = Router(prefix="/kinds", tags=["registry"])
event_type_router = Router(prefix="/event-types", tags=["registry"])
policy_router = Router(prefix="/policies", tags=["registry"])

Description = Annotated[str, Field(max_length=1_000)]
Scopes = Annotated[
    list[Annotated[str, Field(max_length=200)]], Field(max_length=1_000, examples=[["*"], ["tenant:acme", "kind:pay"]])
]


class SetKind(Body):
    """A kind. An omitted field is removed."""

    domain: Text | None = None
    description: Description | None = None


class SetEventType(Body):
    """An event type. An omitted field is removed."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={
            "examples": [{"domain": "billing", "schema": {"type": "object", "required": ["order"]}}],
        },
    )

    domain: Text | None = None
    json_schema: dict[str, Any] | None = Field(default=None, alias="schema", description="JSON Schema of the data.")
    description: Description | None = None


class SetPolicies(Body):
    """The policies to change. An omitted field does not change."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [{"unknown_kinds": "refuse"}]})

    unknown_kinds: Unknown | None = None
    unknown_agents: Unknown | None = None
    unknown_event_types: Unknown | None = None
    empty_executors: Empty | None = None
    tenant_required: bool | None = None
    pending_includes_running: bool | None = None
    key_required: Scopes | None = Field(default=None, description="Jobs that need an idempotency key.")
    executor_required: Scopes | None = Field(default=None, description="Jobs that need an executor.")
    agent_required: Scopes | None = Field(default=None, description="Jobs that need an agent.")


@kind_router.get("", dependencies=[allowed(Scope.READ)], response_model=Page[RegisteredKind])
async def list_kinds(app: TheApp, domain: ShortText = None) -> Page[RegisteredKind]:
    """List the registered kinds by name, or those of a domain."""
    return Page(items=await app.kinds.alist(domain=domain))


@kind_router.get("/{name:path}", dependencies=[allowed(Scope.READ)], response_model=RegisteredKind)
async def show_kind(app: TheApp, name: NamePath) -> RegisteredKind:
    return await app.kinds.aget(name)


@kind_router.put("/{name:path}", dependencies=[allowed_all_tenants(Scope.ADMIN)], response_model=RegisteredKind)
async def set_kind(app: TheApp, name: NamePath, body: SetKind | None = None) -> RegisteredKind:
    """Register a kind, or replace its description and domain."""
    definition = body or SetKind()
    return await app.kinds.aset(name, definition.description, domain=definition.domain)


@kind_router.delete("/{name:path}", dependencies=[allowed_all_tenants(Scope.ADMIN)], status_code=204)
async def remove_kind(app: TheApp, name: NamePath) -> None:
    """Remove a kind from the registry. Its jobs stay."""
    await app.kinds.aremove(name)


@event_type_router.get("", dependencies=[allowed(Scope.READ)], response_model=Page[EventType])
async def list_event_types(app: TheApp, domain: ShortText = None) -> Page[EventType]:
    """List the registered event types by name, or those of a domain."""
    return Page(items=await app.event_types.alist(domain=domain))


@event_type_router.get("/{name:path}", dependencies=[allowed(Scope.READ)], response_model=EventType)
async def show_event_type(app: TheApp, name: NamePath) -> EventType:
    return await app.event_types.aget(name)


@event_type_router.put("/{name:path}", dependencies=[allowed_all_tenants(Scope.ADMIN)], response_model=EventType)
async def set_event_type(app: TheApp, name: NamePath, body: SetEventType | None = None) -> EventType:
    """Register an event type, or replace it."""
    definition = body or SetEventType()
    return await app.event_types.aset(
        name, domain=definition.domain, schema=definition.json_schema, description=definition.description
    )


@event_type_router.delete("/{name:path}", dependencies=[allowed_all_tenants(Scope.ADMIN)], status_code=204)
async def remove_event_type(app: TheApp, name: NamePath) -> None:
    """Remove an event type from the registry. Events that were sent stay."""
    await app.event_types.aremove(name)


@policy_router.get("", dependencies=[allowed(Scope.READ)], response_model=Policies)
async def show_policies(app: TheApp) -> Policies:
    """Show the policies of the deployment."""
    return await app.policies.aget()


@policy_router.put("", dependencies=[allowed_all_tenants(Scope.ADMIN)], response_model=Policies)
async def set_policies(app: TheApp, body: SetPolicies) -> Policies:
    """Change policies. They apply to what is enqueued, sent or claimed from now on."""
    changes: Any = {name: value for name, value in body.given().items() if value is not None}
    return await app.policies.aset(**changes)


@policy_router.get("/unregistered", dependencies=[allowed(Scope.READ)], response_model=Page[UnregisteredName])
async def list_unregistered(app: TheApp) -> Page[UnregisteredName]:
    """List the names that were accepted with a warning."""
    return Page(items=await app.policies.aunregistered())
