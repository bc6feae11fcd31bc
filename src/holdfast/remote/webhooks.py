"""``client.webhooks``, ``connectors``."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Unpack

from holdfast.engine.operation import awaited, operation
from holdfast.engine.retry import Retry
from holdfast.engine.units import in_bytes, seconds
from holdfast.features.connectors.model import Connector, ConnectorOptions
from holdfast.features.events.model import JobOptions
from holdfast.features.webhooks.model import Webhook, WebhookDelivery
from holdfast.features.webhooks.operations import Changes, DeliveryFilter
from holdfast.remote.handle import policy
from holdfast.remote.http_requests import Steps, delete, get, given, patch, post, put, segment
from holdfast.remote.responses import read
from holdfast.remote.runners import RemoteNamespace

_Deliveries = list[WebhookDelivery]  # inside the class the word is an operation


class Webhooks(RemoteNamespace):
    """Webhooks that are told of events over HTTP. URLs are shown without their query."""

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
        """``client.webhooks.add("ops", "https://…", secrets="OPS_HOOK", wants=["job.dead_letter"])``. ``secrets`` are
        names of secrets of the workers."""
        said = given(secrets=_listed(secrets), wants=None if wants is None else _listed(wants), kind=kind)
        body = {"name": name, "url": url, **said, **_how(options)}
        return (yield from self._read(Webhook, post("/webhooks", body)))

    aadd = awaited(add)

    @operation
    def set(self, name: str, **changes: Unpack[Changes]) -> Steps[Webhook]:
        """Change what is given; an option of ``options`` that is None gets its default again."""
        said: dict[str, Any] = {**changes}
        options = _how(said.pop("options", {}))
        for each in ("secrets", "wants"):
            if each in said:
                said[each] = _listed(said[each])
        return (yield from self._read(Webhook, patch(_at(name), said | options)))

    aset = awaited(set)

    @operation
    def get(self, name: str) -> Steps[Webhook]:
        return (yield from self._read(Webhook, get(_at(name))))

    aget = awaited(get)

    @operation
    def list(self) -> Steps[list[Webhook]]:
        """Webhooks by name."""
        return (yield from self._pages(Webhook, "/webhooks"))

    alist = awaited(list)

    @operation
    def remove(self, name: str) -> Steps[None]:
        yield from self._ask(delete(_at(name)))

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
        return _job((yield from self._ask(post(f"{_at(name)}/test"))))

    atest = awaited(test)

    @operation
    def resend(self, name: str, message: str) -> Steps[str]:
        """Send a message again under the same id. Returns the id of the job that sends it."""
        return _job((yield from self._ask(post(f"{_at(name)}/resend", {"message": message}))))

    aresend = awaited(resend)

    @operation
    def deliveries(self, name: str, **wanted: Unpack[DeliveryFilter]) -> Steps[_Deliveries]:
        """Attempts to deliver messages, newest first."""
        limit, before = wanted.get("limit", 50), wanted.get("before")
        chosen = given(message=wanted.get("message"), failed=wanted.get("failed"))
        return (yield from self._some(WebhookDelivery, f"{_at(name)}/deliveries", limit, before, **chosen))

    adeliveries = awaited(deliveries)


class Connectors(RemoteNamespace):
    """Settings of built-in kinds that reach out, per tenant."""

    @operation
    def set(self, name: str, **says: Unpack[ConnectorOptions]) -> Steps[Connector]:
        """``client.connectors.set("http.request", hosts=["api.example.com"])``. An option that is not given keeps its
        value."""
        body: dict[str, Any] = {**says}
        if body.get("timeout") is not None:
            body["timeout"] = seconds(body["timeout"], "timeout")
        if body.get("max_bytes") is not None:
            body["max_bytes"] = in_bytes(body["max_bytes"], "max_bytes")
        request = dataclasses.replace(put(_connector(name), body), repeatable=True)
        return (yield from self._read(Connector, request))

    aset = awaited(set)

    @operation
    def get(self, name: str) -> Steps[Connector]:
        return (yield from self._read(Connector, get(_connector(name))))

    aget = awaited(get)

    @operation
    def list(self) -> Steps[list[Connector]]:
        return (yield from self._pages(Connector, "/connectors"))

    alist = awaited(list)

    @operation
    def remove(self, name: str) -> Steps[None]:
        yield from self._ask(delete(_connector(name)))

    aremove = awaited(remove)


def _at(name: str) -> str:
    return f"/webhooks/{segment(name)}"


def _connector(name: str) -> str:
    return f"/connectors/{segment(name)}"


def _listed(names: str | Sequence[str]) -> list[str]:
    return [names] if isinstance(names, str) else [*names]


def _how(options: Mapping[str, Any]) -> dict[str, Any]:
    return {name: policy(value) if isinstance(value, Retry) else value for name, value in options.items()}


def _job(answer: Any) -> str:
    job_id: str = read(dict[str, str], answer)["job_id"]
    return job_id
