"""``app.connectors``: which hosts a tenant's jobs may reach, and with which secrets."""

from __future__ import annotations

from typing import Annotated, Any, Unpack

from holdfast.engine.declared import Help, http
from holdfast.engine.job import EVERY_TENANT
from holdfast.engine.names import check_name
from holdfast.engine.operation import Program, awaited, operation
from holdfast.errors import InvalidSetting, NotFound
from holdfast.features.connectors.model import Connector, ConnectorDraft, ConnectorOptions
from holdfast.stores.flow import Steps, flow, run
from holdfast.stores.namespace import StoreNamespace
from holdfast.stores.port import Caller

_Connectors = list[Connector]  # inside the class, `list` is an operation

Name = Annotated[str, Help("The connector's name: http.request.", "CONNECTOR")]
_EXAMPLE: dict[str, Any] = {
    "hosts": ["api.example.com"],
    "secrets": ["RATES_TOKEN"],
    "headers": {"Authorization": {"secret": "RATES_TOKEN", "prefix": "Bearer "}},
    "timeout": "10s",
}


class Connectors(StoreNamespace):
    """Settings of the built-in kinds that send requests, per tenant."""

    @operation
    @http("PUT /connectors/{name}", "admin", tenant="one", example=_EXAMPLE)
    def set(self, name: Name, **options: Unpack[ConnectorOptions]) -> Program[Connector]:
        """Set what a connector may reach. An option that is not given keeps its value. Applies to jobs that start
        afterwards.

        ``app.connectors.set("http.request", hosts=["api.example.com"], secrets=["RATES_TOKEN"])``
        """
        return (yield from run(_update(self._caller, check_name(name, "connector"), options, self._one_tenant())))

    aset = awaited(set)

    @operation
    @http("GET /connectors/{name}", "read")
    def get(self, name: Name) -> Program[Connector]:
        """Show the settings of one connector."""
        connector = yield from run(self._store.connectors.get(check_name(name, "connector"), self._one_tenant()))
        if connector is None:
            raise _missing(name)
        return connector

    aget = awaited(get)

    @operation
    @http("GET /connectors", "read")
    def list(self) -> Program[_Connectors]:
        """List the connector settings by name."""
        return (yield from run(self._store.connectors.list(self._tenant)))

    alist = awaited(list)

    @operation
    @http("DELETE /connectors/{name}", "admin", tenant="one")
    def remove(self, name: Name) -> Program[None]:
        """Remove a connector's settings. Its jobs are rejected from then on."""
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
