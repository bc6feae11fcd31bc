"""The port of endpoints (JF-9, SC-15): a part of ``Verbs`` in ``base``."""

from __future__ import annotations

from typing import Protocol

from holdfast.features.webhooks.model import Endpoint, EndpointDelivery, EndpointDraft
from holdfast.stores.flow import Flow


class EndpointVerbs(Protocol):
    def add_endpoint(self, draft: EndpointDraft, id: str, actor: str, tenant: str) -> Flow[bool]:
        """False when there is one of that name. Its subscriptions are saved beside it, in the same transaction."""
        ...

    def change_endpoint(self, draft: EndpointDraft, actor: str, tenant: str) -> Flow[bool]:
        """False when there is none of that name."""
        ...

    def disable_endpoint(self, name: str, reason: str, actor: str, tenant: str) -> Flow[bool]:
        """Nothing more is made for it, and ``endpoint.disabled`` is told. Whoever was first stands."""
        ...

    def enable_endpoint(self, name: str, skip: bool, actor: str, tenant: str) -> Flow[bool]:
        """Go on with what it has missed, or (``skip``) without it."""
        ...

    def remove_endpoint(self, name: str, actor: str, tenant: str) -> Flow[bool]:
        """With its subscriptions and the log of its deliveries."""
        ...

    def note_endpoint_delivery(self, entry: EndpointDelivery, tenant: str) -> Flow[bool]:
        """Keep what became of an attempt, and forget the oldest; False when the endpoint is gone."""
        ...

    def endpoint(self, name: str, tenant: str) -> Flow[Endpoint | None]: ...
    def endpoints(self, tenant: str) -> Flow[list[Endpoint]]: ...
    def endpoint_deliveries(
        self,
        endpoint_id: str,
        tenant: str,
        limit: int,
        before: str | None = None,
        message: str | None = None,
        failed: bool = False,
    ) -> Flow[list[EndpointDelivery]]:
        """Attempts, the newest first, before the one named; of one message, or those that failed."""
        ...
