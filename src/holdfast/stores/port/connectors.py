"""The port of settings for connectors (JF-11): a part of ``Verbs`` in ``base``."""

from __future__ import annotations

from typing import Protocol

from holdfast.features.connectors.model import Connector, ConnectorDraft
from holdfast.stores.flow import Flow


class ConnectorVerbs(Protocol):
    def set_connector(self, draft: ConnectorDraft, actor: str, tenant: str) -> Flow[Connector]:
        """In place of what there is. Settings are one tenant's; there are none for all."""
        ...

    def remove_connector(self, name: str, actor: str, tenant: str) -> Flow[bool]: ...

    def connectors(self, tenant: str) -> Flow[list[Connector]]:
        """By name."""
        ...

    def connector(self, name: str, tenant: str) -> Flow[Connector | None]: ...
