"""``client.kinds``, ``client.event_types``, ``client.policies``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Unpack

from holdfast.engine.operation import awaited, operation
from holdfast.features.registry.model import EventType, Policies, PolicyOptions, RegisteredKind, UnregisteredName
from holdfast.remote.http_requests import Steps, delete, get, put, segment, without_none
from holdfast.remote.runners import RemoteNamespace

_Kinds = list[RegisteredKind]
_Types = list[EventType]
_Names = list[UnregisteredName]


class Kinds(RemoteNamespace):
    """The registry of kinds."""

    @operation
    def set(self, name: str, description: str | None = None, *, domain: str | None = None) -> Steps[RegisteredKind]:
        """Register a kind, or replace its description and domain."""
        body = without_none(description=description, domain=domain)
        return (yield from self._read(RegisteredKind, put(_kind(name), body)))

    aset = awaited(set)

    @operation
    def get(self, name: str) -> Steps[RegisteredKind]:
        return (yield from self._read(RegisteredKind, get(_kind(name))))

    aget = awaited(get)

    @operation
    def list(self, *, domain: str | None = None) -> Steps[_Kinds]:
        return (yield from self._all(RegisteredKind, "/kinds", domain=domain))

    alist = awaited(list)

    @operation
    def remove(self, name: str) -> Steps[None]:
        yield from self._request(delete(_kind(name)))

    aremove = awaited(remove)


class EventTypes(RemoteNamespace):
    """The registry of event types."""

    @operation
    def set(
        self,
        name: str,
        *,
        domain: str | None = None,
        schema: Mapping[str, Any] | None = None,
        description: str | None = None,
    ) -> Steps[EventType]:
        """Register an event type, or replace it."""
        body = without_none(domain=domain, schema=None if schema is None else dict(schema), description=description)
        return (yield from self._read(EventType, put(_type(name), body)))

    aset = awaited(set)

    @operation
    def get(self, name: str) -> Steps[EventType]:
        return (yield from self._read(EventType, get(_type(name))))

    aget = awaited(get)

    @operation
    def list(self, *, domain: str | None = None) -> Steps[_Types]:
        return (yield from self._all(EventType, "/event-types", domain=domain))

    alist = awaited(list)

    @operation
    def remove(self, name: str) -> Steps[None]:
        yield from self._request(delete(_type(name)))

    aremove = awaited(remove)


class DeploymentPolicies(RemoteNamespace):
    """Rules of the whole deployment."""

    @operation
    def get(self) -> Steps[Policies]:
        return (yield from self._read(Policies, get("/policies")))

    aget = awaited(get)

    @operation
    def set(self, **options: Unpack[PolicyOptions]) -> Steps[Policies]:
        """Change policies: ``client.policies.set(unknown_kinds="refuse")``. The others stay."""
        return (yield from self._read(Policies, put("/policies", dict(options))))

    aset = awaited(set)

    @operation
    def unregistered(self) -> Steps[_Names]:
        """Names that were accepted with a warning."""
        return (yield from self._all(UnregisteredName, "/policies/unregistered"))

    aunregistered = awaited(unregistered)


def _kind(name: str) -> str:
    return f"/kinds/{segment(name)}"


def _type(name: str) -> str:
    return f"/event-types/{segment(name)}"
