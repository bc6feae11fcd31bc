"""What an app's connectors go out with: the operator's policy, what the tenant has set, and secrets by name.

A secret is asked for when a job runs, is told to the redactor before anything else, and is kept nowhere.
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
"""From the name of a secret and a tenant to its value, or None."""
OutgoingHeaders = Callable[[Context], Mapping[str, str]]
"""Headers for whatever a job sends: where its trace goes on."""
REDACTED: Final = b"[redacted]"


@dataclass(slots=True)
class Outbound:
    policy: EgressPolicy = field(repr=False)
    secrets: SecretProvider = field(repr=False)
    redact: Redactor = field(repr=False)
    outgoing_headers: OutgoingHeaders | None = None

    async def settings(self, ctx: Context, name: str) -> Connector:
        """Those of the job's own tenant. Nothing goes out before somebody has said so."""
        found = await ctx._run.session.arun(ctx._run.session.store.connectors.get(name, ctx.tenant))
        if found is None:
            raise Reject("connector_not_set", f"nothing is set for {name} in this tenant: app.connectors.set(…)")
        if not found.enabled:
            raise Reject("connector_disabled", f"{name} is disabled in this tenant")
        return found

    def narrowed(self, settings: Connector, timeout: float | None, max_bytes: int | None) -> EgressPolicy:
        """The operator's policy, made smaller by what the tenant has set and by what the job asks for."""
        total = min(each for each in (self.policy.total, settings.timeout, timeout) if each is not None)
        size = min(each for each in (self.policy.max_bytes, settings.max_bytes, max_bytes) if each is not None)
        return replace(self.policy, own_hosts=settings.hosts, total=total, max_bytes=size)

    async def headers(
        self, ctx: Context, settings: Connector, own: Mapping[str, Any]
    ) -> tuple[dict[str, str], list[bytes]]:
        """What the tenant sends always, what this job sends, and the secrets that are in there."""
        named = {name.lower() for name in own}
        given = {name: value for name, value in settings.headers.items() if name.lower() not in named} | dict(own)
        made: dict[str, str] = {}
        values: list[bytes] = []
        for name, value in given.items():
            wanted = secret_in(value)
            if wanted is None:
                made[name] = value
                continue
            if name in own and wanted[0] not in settings.secrets:
                raise Reject("secret_not_allowed", f"jobs of this tenant may not use a secret called {wanted[0]}")
            secret = await self.secret(wanted[0], ctx.tenant)
            values.append(secret.encode())
            made[name] = wanted[1] + secret
        more = {} if self.outgoing_headers is None else self.outgoing_headers(ctx)
        taken = {name.lower() for name in made}
        return made | {name: value for name, value in more.items() if name.lower() not in taken}, values

    async def secret(self, name: str, tenant: str) -> str:
        found = await asyncio.to_thread(self.secrets, name, tenant)  # it may ask somebody
        value = await found if inspect.isawaitable(found) else found
        if not isinstance(value, str) or len(value) < LEAST:
            raise Reject("secret_missing", f"there is no secret called {name} for this tenant here, or it is too short")
        self.redact.know(value)
        return value


def without(data: bytes, secrets: list[bytes]) -> bytes:
    """What came back, without the secrets that were sent: some servers repeat what they were told."""
    for secret in secrets:
        data = data.replace(secret, REDACTED)
    return data
