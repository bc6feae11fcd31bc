"""``app.connectors``: which hosts a tenant's jobs may reach, and with which secrets."""

from __future__ import annotations

from typing import Unpack

from holdfast.engine.job import EVERY_TENANT
from holdfast.engine.names import check_name
from holdfast.engine.operation import Program, awaited, operation
from holdfast.errors import InvalidSetting, NotFound
from holdfast.features.connectors.model import Connector, ConnectorDraft, ConnectorOptions
from holdfast.stores.flow import Steps, flow, run
from holdfast.stores.namespace import StoreNamespace
from holdfast.stores.port import Caller

_Connectors = list[Connector]  # inside the class the word is an operation


class Connectors(StoreNamespace):
    """Settings of built-in kinds that reach out, per tenant."""

    @operation
    def set(self, name: str, **says: Unpack[ConnectorOptions]) -> Program[Connector]:
        """``app.connectors.set("http.request", hosts=["api.example.com"], secrets=["RATES_TOKEN"])``. An option that is
        not given keeps its value. Applies to jobs that start afterwards."""
        return (yield from run(put(self._caller, check_name(name, "connector"), says, self._whose())))

    aset = awaited(set)

    @operation
    def get(self, name: str) -> Program[Connector]:
        """The settings of one connector; ``NotFound`` if there are none."""
        found = yield from run(self._store.connectors.get(check_name(name, "connector"), self._whose()))
        if found is None:
            raise _missing(name)
        return found

    aget = awaited(get)

    @operation
    def list(self) -> Program[_Connectors]:
        """All settings of this tenant."""
        return (yield from run(self._store.connectors.list(self._tenant)))

    alist = awaited(list)

    @operation
    def remove(self, name: str) -> Program[None]:
        """Remove the settings. Only the policy of the workers' operator applies then."""
        removed = self._store.connectors.remove(check_name(name, "connector"), self._actor, self._whose())
        if not (yield from run(removed)):
            raise _missing(name)

    aremove = awaited(remove)

    def _whose(self) -> str:
        if self._tenant == EVERY_TENANT:
            raise InvalidSetting("connector settings belong to one tenant: name it", code="invalid_name")
        return self._tenant


@flow()
def put(caller: Caller, name: str, says: ConnectorOptions, tenant: str) -> Steps[Connector]:
    was = yield from caller.store.connectors.get(name, tenant).start()
    return (yield from caller.store.connectors.set(ConnectorDraft.of(name, was, says), caller.actor, tenant).start())


def _missing(name: str) -> NotFound:
    return NotFound(f"no settings for connector {name} in this tenant", code="connector_not_found")
