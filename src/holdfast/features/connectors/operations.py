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

_Connectors = list[Connector]  # inside the class, `list` is an operation


class Connectors(StoreNamespace):
    """Settings of the built-in kinds that send requests, per tenant."""

    @operation
    def set(self, name: str, **options: Unpack[ConnectorOptions]) -> Program[Connector]:
        """Set a connector: ``app.connectors.set("http.request", hosts=["api.example.com"], secrets=["RATES_TOKEN"])``.
        An option that is not given keeps its value. Applies to jobs that start afterwards."""
        return (yield from run(_update(self._caller, check_name(name, "connector"), options, self._one_tenant())))

    aset = awaited(set)

    @operation
    def get(self, name: str) -> Program[Connector]:
        """The settings of one connector; ``NotFound`` if there are none."""
        connector = yield from run(self._store.connectors.get(check_name(name, "connector"), self._one_tenant()))
        if connector is None:
            raise _missing(name)
        return connector

    aget = awaited(get)

    @operation
    def list(self) -> Program[_Connectors]:
        """All settings of this tenant."""
        return (yield from run(self._store.connectors.list(self._tenant)))

    alist = awaited(list)

    @operation
    def remove(self, name: str) -> Program[None]:
        """Remove the settings. Only the policy of the workers' operator applies then."""
        removed = self._store.connectors.remove(check_name(name, "connector"), self._actor, self._one_tenant())
        if not (yield from run(removed)):
            raise _missing(name)

    aremove = awaited(remove)

    def _one_tenant(self) -> str:
        if self._tenant == EVERY_TENANT:
            raise InvalidSetting("connector settings belong to one tenant: name it", code="invalid_name")
        return self._tenant


@flow()
def _update(caller: Caller, name: str, options: ConnectorOptions, tenant: str) -> Steps[Connector]:
    current = yield from caller.store.connectors.get(name, tenant).start()
    draft = ConnectorDraft.of(name, current, options)
    return (yield from caller.store.connectors.set(draft, caller.actor, tenant).start())


def _missing(name: str) -> NotFound:
    return NotFound(f"no settings for connector {name} in this tenant", code="connector_not_found")
