"""Settings of connectors (JF-11), as ``app.connectors``: whom a tenant's jobs may reach, and with which secrets."""

from __future__ import annotations

from typing import Unpack

from holdfast.engine.job import EVERY_TENANT
from holdfast.engine.names import check_name
from holdfast.errors import InvalidSetting, NotFound
from holdfast.features.connectors.model import Connector, ConnectorDraft, ConnectorOptions
from holdfast.stores.flow import Flow, Steps, flow
from holdfast.stores.port import Caller

_Connectors = list[Connector]  # inside the class the word is a method


class Connectors:
    """Each call has two colours: the one that begins with ``a`` is awaited. Settings are one tenant's."""

    def __init__(self, caller: Caller) -> None:
        self._caller = caller

    def set(self, name: str, **says: Unpack[ConnectorOptions]) -> Connector:
        """``app.connectors.set("http.request", hosts=["api.example.com"], secrets=["RATES_TOKEN"])``. What is not named
        stays as it was. Jobs that begin from then on are held to it."""
        return self._caller.run(self._set(name, says))

    async def aset(self, name: str, **says: Unpack[ConnectorOptions]) -> Connector:
        return await self._caller.arun(self._set(name, says))

    def show(self, name: str) -> Connector:
        return _there(name, self._caller.run(self._one(name)))

    async def ashow(self, name: str) -> Connector:
        return _there(name, await self._caller.arun(self._one(name)))

    def list(self) -> _Connectors:
        return self._caller.run(self._caller.store.connectors.list(self._caller.tenant))

    async def alist(self) -> _Connectors:
        return await self._caller.arun(self._caller.store.connectors.list(self._caller.tenant))

    def remove(self, name: str) -> None:
        """Forget what was set: its jobs are held to what the operator of the workers has set alone."""
        _gone(name, self._caller.run(self._remove(name)))

    async def aremove(self, name: str) -> None:
        _gone(name, await self._caller.arun(self._remove(name)))

    def _set(self, name: str, says: ConnectorOptions) -> Flow[Connector]:
        return put(self._caller, check_name(name, "connector"), says, self._whose())

    def _one(self, name: str) -> Flow[Connector | None]:
        return self._caller.store.connectors.get(check_name(name, "connector"), self._whose())

    def _remove(self, name: str) -> Flow[bool]:
        return self._caller.store.connectors.remove(check_name(name, "connector"), self._caller.actor, self._whose())

    def _whose(self) -> str:
        if self._caller.tenant == EVERY_TENANT:
            raise InvalidSetting("settings of connectors are one tenant's: name it", code="invalid_name")
        return self._caller.tenant


@flow()
def put(caller: Caller, name: str, says: ConnectorOptions, tenant: str) -> Steps[Connector]:
    was = yield from caller.store.connectors.get(name, tenant).start()
    return (yield from caller.store.connectors.set(ConnectorDraft.of(name, was, says), caller.actor, tenant).start())


def _there(name: str, found: Connector | None) -> Connector:
    if found is None:
        raise NotFound(f"nothing is set for {name} in this tenant", code="connector_not_found")
    return found


def _gone(name: str, was: bool) -> None:
    if not was:
        raise NotFound(f"nothing is set for {name} in this tenant", code="connector_not_found")
