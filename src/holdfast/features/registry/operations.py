"""``app.kinds``, ``app.event_types`` and ``app.policies``: the registries, and the policies for other names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Unpack

from holdfast.engine.declared import Help, http, local_only
from holdfast.engine.names import check_name
from holdfast.engine.operation import Program, awaited, operation
from holdfast.errors import NotFound
from holdfast.features.registry.model import (
    NAME_LIMIT,
    TEXT_LIMIT,
    EventType,
    EventTypeDraft,
    Policies,
    PolicyOptions,
    RegisteredKind,
    UnregisteredName,
    check_domain,
    check_policies,
    check_text,
)
from holdfast.stores.flow import run
from holdfast.stores.namespace import StoreNamespace
from holdfast.stores.port import Caller

_Kinds = list[RegisteredKind]  # inside the classes, `list` is an operation
_Registered = tuple[str | None, str | None]
_Types = list[EventType]
_Names = list[UnregisteredName]

KindName = Annotated[str, Help("Name of the kind.", "KIND")]
TypeName = Annotated[str, Help("Name of the event type: order.paid.", "NAME", longest=NAME_LIMIT)]
Domain = Annotated[str | None, Help("The domain that it belongs to.", "NAME")]
OfDomain = Annotated[str | None, Help("Only those of this domain.", "NAME")]
Description = Annotated[str | None, Help("What it is for.", longest=TEXT_LIMIT)]


class Kinds(StoreNamespace):
    """The registry of kinds, for all tenants. ``app.policies`` decides about jobs of other kinds."""

    def __init__(self, caller: Caller, declared: Callable[[], Mapping[str, _Registered]] = dict) -> None:
        """``declared`` returns the kinds of the app with their descriptions and domains."""
        super().__init__(caller)
        self._declared = declared

    @operation
    @local_only("it registers the kinds that the code of this app declares")
    def register(self) -> Program[int]:
        """Register every kind that the app declares, with the first line of its docstring and its domain. Returns how
        many are new or have changed."""
        declared = self._declared()
        abouts, domains = ({name: entry[part] for name, entry in declared.items()} for part in (0, 1))
        return (yield from run(self._store.kinds.register(abouts, self._actor, domains)))

    aregister = awaited(register)

    @operation
    @http("PUT /kinds/{name}", "admin", tenant="all", example={"description": "Sends one mail."})
    def set(self, name: KindName, description: Description = None, *, domain: Domain = None) -> Program[RegisteredKind]:
        """Register one kind, or replace its description and domain."""
        kind, domains = check_name(name, "kind"), {name: check_domain(domain)}
        yield from run(self._store.kinds.register({kind: check_text(description)}, self._actor, domains))
        return (yield from self._one(kind))

    aset = awaited(set)

    @operation
    @http("GET /kinds/{name}", "read")
    def get(self, name: KindName) -> Program[RegisteredKind]:
        """Show one registered kind."""
        return (yield from self._one(check_name(name, "kind")))

    aget = awaited(get)

    @operation
    @http("GET /kinds", "read")
    def list(self, *, domain: OfDomain = None) -> Program[_Kinds]:
        """List the registered kinds by name. Built-in kinds need no registration and are not listed."""
        return (yield from run(self._store.kinds.list(self._tenant, check_domain(domain))))

    alist = awaited(list)

    @operation
    @http("DELETE /kinds/{name}", "admin", tenant="all")
    def remove(self, name: KindName) -> Program[None]:
        """Remove a kind from the registry. Its jobs stay; new ones are unknown from then on."""
        if not (yield from run(self._store.kinds.remove(check_name(name, "kind"), self._actor))):
            raise _no_kind(name)

    aremove = awaited(remove)

    def _one(self, name: str) -> Program[RegisteredKind]:
        kind = yield from run(self._store.kinds.get(name, self._tenant))
        if kind is None:
            raise _no_kind(name)
        return kind


class EventTypes(StoreNamespace):
    """The registry of event types, for all tenants: their domains and the JSON Schemas of their data."""

    @operation
    @http(
        "PUT /event-types/{name}",
        "admin",
        tenant="all",
        example={"domain": "billing", "schema": {"type": "object", "required": ["order"]}},
    )
    def set(
        self,
        name: TypeName,
        *,
        domain: Domain = None,
        schema: Annotated[
            Mapping[str, Any] | None,
            Help("JSON Schema of its data.", "JSON", option="--data-schema", wire=dict[str, Any] | None),
        ] = None,
        description: Description = None,
    ) -> Program[EventType]:
        """Register an event type, or replace it.

        ``app.event_types.set("order.paid", domain="billing", schema={"type": "object", "required": ["order"]})``
        """
        draft = EventTypeDraft.of(name, domain, schema, description)
        return (yield from run(self._store.event_types.set(draft, self._actor)))

    aset = awaited(set)

    @operation
    @http("GET /event-types/{name}", "read")
    def get(self, name: TypeName) -> Program[EventType]:
        """Show one registered event type with its schema."""
        checked = check_name(name, "event type", limit=NAME_LIMIT)
        event_type = yield from run(self._store.event_types.get(checked, self._tenant))
        if event_type is None:
            raise _no_type(name)
        return event_type

    aget = awaited(get)

    @operation
    @http("GET /event-types", "read")
    def list(self, *, domain: OfDomain = None) -> Program[_Types]:
        """List the registered event types by name."""
        return (yield from run(self._store.event_types.list(check_domain(domain), self._tenant)))

    alist = awaited(list)

    @operation
    @http("DELETE /event-types/{name}", "admin", tenant="all")
    def remove(self, name: TypeName) -> Program[None]:
        """Remove an event type from the registry. Events that were sent stay."""
        checked = check_name(name, "event type", limit=NAME_LIMIT)
        if not (yield from run(self._store.event_types.remove(checked, self._actor))):
            raise _no_type(name)

    aremove = awaited(remove)


class DeploymentPolicies(StoreNamespace):
    """Rules of the whole deployment: for unknown names, an empty list of executors, jobs without a tenant."""

    @operation
    @http("GET /policies", "read", name="show_policies")
    def get(self) -> Program[Policies]:
        """Show the policies of the deployment."""
        return (yield from run(self._store.policies.get()))

    aget = awaited(get)

    @operation
    @http("PUT /policies", "admin", tenant="all", name="set_policies", example={"unknown_kinds": "refuse"})
    def set(self, **options: Unpack[PolicyOptions]) -> Program[Policies]:
        """Change policies; omitted ones do not change. They apply to what is enqueued, sent or claimed afterwards.

        ``app.policies.set(unknown_kinds="refuse", empty_executors="nobody")``
        """
        return (yield from run(self._store.policies.set(check_policies(options), self._actor)))

    aset = awaited(set)

    @operation
    @http("GET /policies/unregistered", "read", name="list_unregistered")
    def unregistered(self) -> Program[_Names]:
        """List kinds, agents and event types that were accepted with a warning, up to 1,000 per registry and
        tenant."""
        return (yield from run(self._store.kinds.unregistered(self._tenant)))

    aunregistered = awaited(unregistered)


def _no_kind(name: str) -> NotFound:
    return NotFound(
        f"kind {name} is not registered", code="kind_not_found", fix=f"Register it: holdfast kinds set {name}"
    )


def _no_type(name: str) -> NotFound:
    fix = f"Register it: holdfast event-types set {name}"
    return NotFound(f"event type {name} is not registered", code="event_type_not_found", fix=fix)
