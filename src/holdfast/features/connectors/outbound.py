"""Outgoing requests of connectors: the operator's policy, the tenant's settings, and secrets by name.

A secret is read when a job runs, registered with the redactor before anything else, and stored nowhere.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from holdfast.context import Context
from holdfast.engine.outcome import Reject
from holdfast.engine.redaction import LEAST, Redactor
from holdfast.features.connectors.model import Connector, secret_in
from holdfast.outgoing import EgressPolicy

SecretProvider = Callable[[str, str], str | Awaitable[str | None] | None]
"""Returns the value of a secret, or None, for its name and a tenant."""
OutgoingHeaders = Callable[[Context], Mapping[str, str]]
"""Returns headers for every request of a job, such as those that propagate its trace."""
REDACTED: Final = b"[redacted]"


@dataclass(slots=True)
class Outbound:
    """Everything that a connector needs to send a request for a job."""

    policy: EgressPolicy = field(repr=False)
    secrets: SecretProvider = field(repr=False)
    redact: Redactor = field(repr=False)
    outgoing_headers: OutgoingHeaders | None = None

    async def settings(self, ctx: Context, name: str) -> Connector:
        """The settings of the job's tenant. Without settings, the job is rejected and nothing is sent."""
        connector = await ctx._run.session.arun(ctx._run.session.store.connectors.get(name, ctx.tenant))
        if connector is None:
            raise Reject("connector_not_set", f"nothing is set for {name} in this tenant: app.connectors.set(…)")
        if not connector.enabled:
            raise Reject("connector_disabled", f"{name} is disabled in this tenant")
        return connector

    def narrowed_policy(self, settings: Connector, timeout: float | None, max_bytes: int | None) -> EgressPolicy:
        """The operator's policy with the stricter limits of the tenant's settings and of the job."""
        total = min(limit for limit in (self.policy.total, settings.timeout, timeout) if limit is not None)
        size = min(limit for limit in (self.policy.max_bytes, settings.max_bytes, max_bytes) if limit is not None)
        return replace(self.policy, own_hosts=settings.hosts, total=total, max_bytes=size)

    async def headers(
        self, ctx: Context, settings: Connector, job_headers: Mapping[str, Any]
    ) -> tuple[dict[str, str], list[bytes]]:
        """The headers of the tenant's settings and of the job with their secrets filled in, and those secrets."""
        names = {name.lower() for name in job_headers}
        templates = {name: value for name, value in settings.headers.items() if name.lower() not in names}
        headers: dict[str, str] = {}
        secrets: list[bytes] = []
        for name, value in (templates | dict(job_headers)).items():
            reference = secret_in(value)
            if reference is None:
                headers[name] = value
                continue
            secret_name, prefix = reference
            if name in job_headers and secret_name not in settings.secrets:
                raise Reject("secret_not_allowed", f"jobs of this tenant may not use a secret called {secret_name}")
            secret = await self.secret(secret_name, ctx.tenant)
            secrets.append(secret.encode())
            headers[name] = prefix + secret
        more = {} if self.outgoing_headers is None else self.outgoing_headers(ctx)
        taken = {name.lower() for name in headers}
        return headers | {name: value for name, value in more.items() if name.lower() not in taken}, secrets

    async def secret(self, name: str, tenant: str) -> str:
        result = await asyncio.to_thread(self.secrets, name, tenant)  # a provider may block on I/O
        value = await result if inspect.isawaitable(result) else result
        if not isinstance(value, str) or len(value) < LEAST:
            raise Reject("secret_missing", f"there is no secret called {name} for this tenant here, or it is too short")
        self.redact.know(value)
        return value


def without(data: bytes, secrets: list[bytes]) -> bytes:
    """Received bytes with the sent secrets redacted, because some servers echo requests."""
    for secret in secrets:
        data = data.replace(secret, REDACTED)
    return data
