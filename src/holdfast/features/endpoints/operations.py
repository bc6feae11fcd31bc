"""``app.endpoints``: inbound webhooks, and the messages that they receive."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, Protocol, Unpack

from holdfast import config
from holdfast.engine.declared import Help, http, local_only
from holdfast.engine.job import EVERY_TENANT
from holdfast.engine.operation import Program, awaited, operation
from holdfast.engine.payload import DEFAULT_LIMIT, encode
from holdfast.errors import Conflict, InvalidInput, InvalidSetting, NotFound, Refused
from holdfast.features.endpoints.model import MAX_BODY, Endpoint, EndpointDraft, EndpointOptions, Receipt
from holdfast.features.endpoints.verification import MIN_SECRET, verify
from holdfast.features.webhooks.signing import Headers
from holdfast.stores.flow import Steps, flow, run
from holdfast.stores.namespace import StoreNamespace, call
from holdfast.stores.port import Caller
from holdfast.stores.requests import SendEvent, Tenant, new_id

_Endpoints = list[Endpoint]  # inside the class, ``list`` is an operation
Secret = Callable[[str, str], "str | Awaitable[str | None] | None"]
Name = Annotated[str, Help("The endpoint's name, the last part of its URL.", "NAME", longest=60)]


class Prepare(Protocol):
    """Checks a job and returns a call of ``app.prepare``."""

    def __call__(self, kind: str, payload: Any, options: dict[str, Any]) -> Any: ...


class Endpoints(StoreNamespace):
    """Inbound webhooks: signed messages of providers that become events or jobs."""

    def __init__(self, caller: Caller, prepare: Prepare | None = None, secret: Secret = config.tenant_secret) -> None:
        super().__init__(caller)
        self._prepare, self._secret = prepare, secret

    @operation
    @http(
        "PUT /endpoints/{name}",
        "admin",
        tenant="one",
        example={"provider": "github", "secrets": ["GITHUB_HOOK"], "kind": "deploy"},
    )
    def set(self, name: Name, **options: Unpack[EndpointOptions]) -> Program[Endpoint]:
        """Accept messages of a provider at `POST /hooks/NAME`. An option that is not given keeps its value.

        ``app.endpoints.set("github", provider="github", secrets="GITHUB_HOOK", kind="deploy")``. ``secrets`` are names:
        ``HOLDFAST_SECRET_GITHUB_HOOK`` in the environment of the service, or one of the secret provider. With a
        ``kind``, each message is a job that gets it as ``event``; else it is the application event ``event``.
        """
        return (yield from run(_update(self._caller, name, options, self._own())))

    aset = awaited(set)

    @operation
    @http("GET /endpoints/{name}", "read")
    def get(self, name: Name) -> Program[Endpoint]:
        """Show an endpoint."""
        endpoint = yield from run(self._store.endpoints.get(name, self._own()))
        if endpoint is None:
            raise _missing(name)
        return endpoint

    aget = awaited(get)

    @operation
    @http("GET /endpoints", "read")
    def list(self) -> Program[_Endpoints]:
        """List the endpoints by name."""
        return (yield from run(self._store.endpoints.list(self._tenant)))

    alist = awaited(list)

    @operation
    @http("DELETE /endpoints/{name}", "admin", tenant="one")
    def remove(self, name: Name) -> Program[None]:
        """Remove an endpoint. Its messages are refused from then on."""
        if not (yield from run(self._store.endpoints.remove(name, self._actor, self._own()))):
            raise _missing(name)

    aremove = awaited(remove)

    @operation
    @local_only("providers post to /hooks/NAME, where the signature is the credential")
    def receive(self, name: str, headers: Headers, body: bytes, *, tenant: Tenant = None) -> Program[Receipt]:
        """Verify a message and send its event, or enqueue its job, once. `holdfast serve` calls it for
        ``POST /hooks/NAME``; call it in a route of your own with the body as it came, in bytes.

        Raises ``NotFound`` for an unknown or disabled endpoint, ``Refused`` for a wrong or old signature, and
        ``InvalidInput`` for a malformed message.
        """
        scope = tenant or self._own()
        if not isinstance(body, bytes | bytearray | memoryview):
            raise InvalidInput("the body must be the bytes that were received", code="webhook_malformed")
        if len(body) > MAX_BODY:
            raise InvalidInput(f"the message has more than {MAX_BODY:,} bytes", code="payload_too_large")
        endpoint = yield from run(self._store.endpoints.get(name, scope))
        if endpoint is None or not endpoint.enabled:
            raise _missing(name)
        secrets = yield from self._secrets(endpoint)
        now = yield from run(self._store.clock.now())
        received = verify(endpoint.provider, headers, body, secrets, now=now.timestamp(), tolerance=endpoint.tolerance)
        if received.challenge is not None:
            return Receipt(challenge=received.challenge)
        event, data, key = endpoint.event_name(received.type), endpoint.data_of(received), endpoint.key_of(received)
        if endpoint.kind is not None:
            return (yield from self._enqueue(endpoint, {"event": {"name": event, "data": data}}, key))
        text = encode(data, limit=DEFAULT_LIMIT, what=f"data of event {event}")
        new = SendEvent(new_id(), event, text, key)
        sent = yield from run(self._store.ledger.send(new, f"endpoint {name}", scope))
        return Receipt(event_id=sent.id, duplicate=not sent.created)

    areceive = awaited(receive)

    def _enqueue(self, endpoint: Endpoint, payload: dict[str, Any], key: str) -> Program[Receipt]:
        if self._prepare is None or endpoint.kind is None:
            raise InvalidSetting("only an App can enqueue the job of an endpoint", code="invalid_call")
        options = {"tenant": endpoint.tenant, "key": key, "enqueued_by": f"endpoint {endpoint.name}"}
        options |= {} if endpoint.queue is None else {"queue": endpoint.queue}
        prepared = self._prepare(endpoint.kind, payload, options)
        session: Any = self._caller
        try:
            handle = yield from call(lambda: prepared.enqueue(session), lambda: prepared.aenqueue(session))
        except Conflict as conflict:  # sent again with other marginal fields, such as a number of attempts
            if conflict.code != "idempotency_conflict":
                raise
            return Receipt(duplicate=True)
        return Receipt(job_id=handle.id, duplicate=not handle.created)

    def _secrets(self, endpoint: Endpoint) -> Program[tuple[str, ...]]:
        """The values of the secrets that exist here: while one is rotated, the other is enough."""
        found = []
        for name in endpoint.secrets:
            value = yield from call(lambda name=name: self._secret(name, endpoint.tenant))  # type: ignore[misc]
            if inspect.isawaitable(value):
                value = yield from _awaited(value)
            if isinstance(value, str) and len(value) >= MIN_SECRET:
                found.append(value)
        if not found:
            raise Refused(
                f"no secret of endpoint {endpoint.name} is set here, or it is shorter than {MIN_SECRET} characters",
                code="secret_missing",
                fix="Set HOLDFAST_SECRET_<NAME> in the environment of the service.",
            )
        return tuple(found)

    def _own(self) -> str:
        if self._tenant == EVERY_TENANT:
            raise InvalidSetting("an endpoint belongs to one tenant", code="invalid_endpoint", fix="Name the tenant.")
        return self._tenant


def _awaited(value: Awaitable[str | None]) -> Program[str | None]:
    def refuse() -> str | None:
        raise InvalidSetting(
            "the secret provider is async", code="invalid_call", fix="Use await app.endpoints.areceive(…)."
        )

    return (yield from call(refuse, lambda: value))


@flow()
def _update(caller: Caller, name: str, options: EndpointOptions, tenant: str) -> Steps[Endpoint]:
    current = yield from caller.store.endpoints.get(name, tenant).start()
    return (
        yield from caller.store.endpoints.set(EndpointDraft.of(name, current, options), caller.actor, tenant).start()
    )


def _missing(name: str) -> NotFound:
    return NotFound(
        f"no endpoint {name} in this tenant", code="endpoint_not_found", fix="List them: holdfast endpoints list"
    )
