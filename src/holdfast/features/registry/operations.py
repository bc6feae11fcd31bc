"""``app.kinds``, ``app.event_types`` and ``app.policies``: the registries, and the policies for other names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Unpack

from holdfast.engine.names import check_name
from holdfast.engine.operation import Program, awaited, operation
from holdfast.errors import NotFound
from holdfast.features.registry.model import (
    NAME_LIMIT,
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


class Kinds(StoreNamespace):
    """The registry of kinds, for all tenants. ``app.policies`` decides about jobs of other kinds."""

    def __init__(self, caller: Caller, declared: Callable[[], Mapping[str, _Registered]] = dict) -> None:
        """``declared`` returns the kinds of the app with their descriptions and domains."""
        super().__init__(caller)
        self._declared = declared

    @operation
    def register(self) -> Program[int]:
        """Register every kind that the app declares, with the first line of its docstring and its domain. Returns how
        many are new or have changed."""
        declared = self._declared()
        abouts, domains = ({name: entry[part] for name, entry in declared.items()} for part in (0, 1))
        return (yield from run(self._store.kinds.register(abouts, self._actor, domains)))

    aregister = awaited(register)

    @operation
    def set(self, name: str, description: str | None = None, *, domain: str | None = None) -> Program[RegisteredKind]:
        """Register one kind by hand, or replace its description and domain."""
        kind, domains = check_name(name, "kind"), {name: check_domain(domain)}
        yield from run(self._store.kinds.register({kind: check_text(description)}, self._actor, domains))
        return (yield from self._one(kind))

    aset = awaited(set)

    @operation
    def get(self, name: str) -> Program[RegisteredKind]:
        """One registered kind; ``NotFound`` if it is not registered."""
        return (yield from self._one(check_name(name, "kind")))

    aget = awaited(get)

    @operation
    def list(self, *, domain: str | None = None) -> Program[_Kinds]:
        """All registered kinds, or those of a domain, by name. Built-in kinds need no registration and are not
        listed."""
        return (yield from run(self._store.kinds.list(self._tenant, check_domain(domain))))

    alist = awaited(list)

    @operation
    def remove(self, name: str) -> Program[None]:
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
    def set(
        self,
        name: str,
        *,
        domain: str | None = None,
        schema: Mapping[str, Any] | None = None,
        description: str | None = None,
    ) -> Program[EventType]:
        """Register an event type, or replace it: ``app.event_types.set("order.paid", domain="billing",
        schema={"type": "object", "required": ["order"]})``."""
        draft = EventTypeDraft.of(name, domain, schema, description)
        return (yield from run(self._store.event_types.set(draft, self._actor)))

    aset = awaited(set)

    @operation
    def get(self, name: str) -> Program[EventType]:
        """One event type; ``NotFound`` if it is not registered."""
        checked = check_name(name, "event type", limit=NAME_LIMIT)
        event_type = yield from run(self._store.event_types.get(checked, self._tenant))
        if event_type is None:
            raise _no_type(name)
        return event_type

    aget = awaited(get)

    @operation
    def list(self, *, domain: str | None = None) -> Program[_Types]:
        """All registered event types, or those of a domain, by name."""
        return (yield from run(self._store.event_types.list(check_domain(domain), self._tenant)))

    alist = awaited(list)

    @operation
    def remove(self, name: str) -> Program[None]:
        """Remove an event type from the registry. Events that were sent stay."""
        checked = check_name(name, "event type", limit=NAME_LIMIT)
        if not (yield from run(self._store.event_types.remove(checked, self._actor))):
            raise _no_type(name)

    aremove = awaited(remove)


class DeploymentPolicies(StoreNamespace):
    """Rules of the whole deployment: for unknown names, an empty list of executors, jobs without a tenant."""

    @operation
    def get(self) -> Program[Policies]:
        """The policies, for all tenants."""
        return (yield from run(self._store.policies.get()))

    aget = awaited(get)

    @operation
    def set(self, **options: Unpack[PolicyOptions]) -> Program[Policies]:
        """Change policies: ``app.policies.set(unknown_kinds="refuse", empty_executors="nobody")``. They apply to what
        is enqueued, sent or claimed afterwards, by every client."""
        return (yield from run(self._store.policies.set(check_policies(options), self._actor)))

    aset = awaited(set)

    @operation
    def unregistered(self) -> Program[_Names]:
        """Kinds, agents and event types that were accepted with a warning, up to 1,000 per registry and tenant."""
        return (yield from run(self._store.kinds.unregistered(self._tenant)))

    aunregistered = awaited(unregistered)


def _no_kind(name: str) -> NotFound:
    return NotFound(
        f"kind {name} is not registered", code="kind_not_found", fix=f"Register it: holdfast kinds add {name}"
    )


def _no_type(name: str) -> NotFound:
    fix = f"Register it: holdfast event-types add {name}"
    return NotFound(f"event type {name} is not registered", code="event_type_not_found", fix=fix)
