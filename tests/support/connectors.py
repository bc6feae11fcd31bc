"""Settings of connectors in tests, through the port."""

from __future__ import annotations

from typing import Any

from holdfast.features.assembly import Store
from holdfast.features.connectors.model import Connector, ConnectorDraft


def drafted(name: str = "http.request", **says: Any) -> ConnectorDraft:
    return ConnectorDraft.of(name, None, {"hosts": ["api.example.com"], "secrets": ["RATES_TOKEN"]} | says)


def connect(
    store: Store, name: str = "http.request", *, actor: str = "ada", tenant: str = "default", **says: Any
) -> Connector:
    return store.run(store.connectors.set(drafted(name, **says), actor, tenant))
