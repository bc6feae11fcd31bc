"""``client.webhooks``, ``connectors``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Unpack

from holdfast.engine.operation import awaited, operation
from holdfast.engine.units import in_bytes, seconds
from holdfast.features.connectors.model import Connector, ConnectorOptions
from holdfast.features.events.model import JobOptions
from holdfast.features.webhooks.model import Webhook, WebhookDelivery
from holdfast.features.webhooks.operations import Changes, DeliveryFilter
from holdfast.remote.handle import with_policies
from holdfast.remote.http_requests import Steps, delete, get, patch, post, put, segment, without_none
from holdfast.remote.responses import read
from holdfast.remote.runners import RemoteNamespace

_Deliveries = list[WebhookDelivery]  # inside the class, ``list`` is an operation


class Webhooks(RemoteNamespace):
    """Webhooks send events to URLs. The URLs are shown without their query."""

    @operation
    def add(
        self,
        name: str,
        url: str,
        *,
        secrets: str | Sequence[str],
        wants: str | Sequence[str] | None = None,
        kind: str | None = None,
        **options: Unpack[JobOptions],
    ) -> Steps[Webhook]:
        """Add a webhook: ``client.webhooks.add("ops", "https://…", secrets="OPS_HOOK", wants=["job.dead_letter"])``.
        ``secrets`` are names of secrets of the workers."""
        settings = without_none(secrets=_listed(secrets), wants=None if wants is None else _listed(wants), kind=kind)
        body = {"name": name, "url": url, **settings, **with_policies(options)}
        return (yield from self._read(Webhook, post("/webhooks", body)))

    aadd = awaited(add)

    @operation
    def set(self, name: str, **changes: Unpack[Changes]) -> Steps[Webhook]:
        """Change the given settings; None restores the default of an option in ``options``."""
        settings: dict[str, Any] = {**changes}
        options = with_policies(settings.pop("options", {}))
        for each in ("secrets", "wants"):
            if each in settings:
                settings[each] = _listed(settings[each])
        return (yield from self._read(Webhook, patch(_at(name), settings | options)))

    aset = awaited(set)

    @operation
    def get(self, name: str) -> Steps[Webhook]:
        return (yield from self._read(Webhook, get(_at(name))))

    aget = awaited(get)

    @operation
    def list(self) -> Steps[list[Webhook]]:
        """Webhooks by name."""
        return (yield from self._all(Webhook, "/webhooks"))

    alist = awaited(list)

    @operation
    def remove(self, name: str) -> Steps[None]:
        yield from self._request(delete(_at(name)))

    aremove = awaited(remove)

    @operation
    def rotate_secret(self, name: str, secret: str, *, keep: int = 1) -> Steps[Webhook]:
        """Sign with a new secret, and with ``keep`` of the older ones."""
        return (yield from self._read(Webhook, post(f"{_at(name)}/rotate", {"secret": secret, "keep": keep})))

    arotate_secret = awaited(rotate_secret)

    @operation
    def disable(self, name: str, *, reason: str) -> Steps[Webhook]:
        return (yield from self._read(Webhook, post(f"{_at(name)}/disable", {"reason": reason})))

    adisable = awaited(disable)

    @operation
    def enable(self, name: str, *, skip: bool = False) -> Steps[Webhook]:
        """Send events again; ``skip`` leaves out those that arrived while it was disabled."""
        return (yield from self._read(Webhook, post(f"{_at(name)}/enable", {"skip": skip})))

    aenable = awaited(enable)

    @operation
    def test(self, name: str) -> Steps[str]:
        """Send a ``ping``. Returns the id of the job that sends it."""
        return _job((yield from self._request(post(f"{_at(name)}/test"))))

    atest = awaited(test)

    @operation
    def resend(self, name: str, message: str) -> Steps[str]:
        """Send a message again under the same id. Returns the id of the job that sends it."""
        return _job((yield from self._request(post(f"{_at(name)}/resend", {"message": message}))))

    aresend = awaited(resend)

    @operation
    def deliveries(self, name: str, **wanted: Unpack[DeliveryFilter]) -> Steps[_Deliveries]:
        """Attempts to deliver messages, newest first."""
        limit, before = wanted.get("limit", 50), wanted.get("before")
        query = without_none(message=wanted.get("message"), failed=wanted.get("failed"))
        return (yield from self._limited(WebhookDelivery, f"{_at(name)}/deliveries", limit, before, **query))

    adeliveries = awaited(deliveries)


class Connectors(RemoteNamespace):
    """Settings of the built-in kinds that send requests, per tenant."""

    @operation
    def set(self, name: str, **options: Unpack[ConnectorOptions]) -> Steps[Connector]:
        """Set a connector: ``client.connectors.set("http.request", hosts=["api.example.com"])``. Missing options keep
        their value."""
        body: dict[str, Any] = {**options}
        if body.get("timeout") is not None:
            body["timeout"] = seconds(body["timeout"], "timeout")
        if body.get("max_bytes") is not None:
            body["max_bytes"] = in_bytes(body["max_bytes"], "max_bytes")
        return (yield from self._read(Connector, put(_connector(name), body)))

    aset = awaited(set)

    @operation
    def get(self, name: str) -> Steps[Connector]:
        return (yield from self._read(Connector, get(_connector(name))))

    aget = awaited(get)

    @operation
    def list(self) -> Steps[list[Connector]]:
        return (yield from self._all(Connector, "/connectors"))

    alist = awaited(list)

    @operation
    def remove(self, name: str) -> Steps[None]:
        yield from self._request(delete(_connector(name)))

    aremove = awaited(remove)


def _at(name: str) -> str:
    return f"/webhooks/{segment(name)}"


def _connector(name: str) -> str:
    return f"/connectors/{segment(name)}"


def _listed(names: str | Sequence[str]) -> list[str]:
    return [names] if isinstance(names, str) else [*names]


def _job(response: Any) -> str:
    job_id: str = read(dict[str, str], response)["job_id"]
    return job_id
