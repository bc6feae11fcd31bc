"""``http.request``: a job that sends one HTTP request through the guarded client and retries temporary failures.

The request is sent at least once: if a worker dies between the response and the end of the job, the request is sent
again with the same ``Idempotency-Key``. The tenant's settings decide which hosts and secrets the job may use; the
payload contains only names of secrets. A secret is read when a job runs, registered with the redactor before anything
else, and stored nowhere.
"""

from __future__ import annotations

import asyncio
import inspect
import json as codec
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Final, TypedDict

from holdfast.context import Context
from holdfast.engine.outcome import Failed, Reject
from holdfast.engine.payload import decode
from holdfast.engine.redaction import LEAST, Redactor, one_line
from holdfast.engine.retry import http_date, retry_after_delay
from holdfast.errors import (
    EgressError,
    EgressRefused,
    EgressTooLarge,
    InvalidArguments,
    InvalidPayload,
    InvalidSetting,
    Refused,
)
from holdfast.features.connectors.model import Connector, check_headers, secret_in
from holdfast.outgoing import Answer, EgressPolicy, Outgoing, send
from holdfast.worker.shutdown import Ended

SecretProvider = Callable[[str, str], str | Awaitable[str | None] | None]
"""Returns the value of a secret, or None, for its name and a tenant."""
OutgoingHeaders = Callable[[Context], Mapping[str, str]]
"""Returns headers for every request of a job, such as those that propagate its trace."""
REDACTED: Final = b"[redacted]"


@dataclass(slots=True)
class Outbound:
    """What a connector needs to send a request for a job: the operator's policy, and secrets by name."""

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


REQUEST: Final = "http.request"
INLINE: Final = 65_536
"""Bytes; a larger response is stored in the artifact store."""
EXCERPT: Final = 300
LONGEST_WAIT: Final = 86_400.0
RESULT_HEADERS: Final = ("content-type", "etag", "last-modified", "location", "x-request-id")
RETRIED_STATUSES: Final = frozenset({408, 425, 429, *range(500, 600)})
_UNSAFE: Final = frozenset({"POST", "PUT", "PATCH", "DELETE"})


class HttpResult(TypedDict, total=False):
    """The response: ``json`` or ``body`` if it is small and text, otherwise ``artifact``, a reference to it."""

    status: int
    headers: dict[str, str]
    size: int
    elapsed_ms: int
    json: Any
    body: str
    artifact: str


def http_request_handler(reach: Outbound) -> Callable[..., Awaitable[HttpResult]]:
    """The handler of ``http.request``."""

    async def http_request(
        ctx: Context,
        url: str,
        method: str = "GET",
        headers: dict[str, Any] | None = None,
        body: str | None = None,
        json: Any = None,
        timeout: float | None = None,
        expect: list[int] | None = None,
        max_bytes: int | None = None,
        keep: list[str] | None = None,
        redirects: int = 0,
    ) -> HttpResult:
        check_request({"headers": headers, "body": body, "json": json, "timeout": timeout, "max_bytes": max_bytes})
        settings = await reach.settings(ctx, REQUEST)
        job_headers = _job_headers(ctx, method, headers or {}, json)
        try:
            policy = reach.narrowed_policy(settings, timeout, max_bytes).redirecting(redirects)
            sent_headers, secrets = await reach.headers(ctx, settings, job_headers)
            if secrets and not policy.plain_secrets:
                policy = policy.secure()
            data = codec.dumps(json).encode() if json is not None else (body or "").encode()
            response = await send(Outgoing(method, url, sent_headers, data), policy)
        except EgressError as error:
            # A refused request and a response that is too large would end the same way the next time.
            final = isinstance(error, EgressRefused | EgressTooLarge)
            raise Ended(Failed(error.code, error.message, final=final)) from None
        expected = response.status in expect if expect else 200 <= response.status < 300
        if expected:
            return await _result(ctx, response, secrets, keep or [])
        raise _failure(ctx, response, secrets)

    return http_request


def check_request(values: Mapping[str, Any]) -> None:
    """Check a payload before it is stored, above all that it contains no secret."""
    if values.get("body") is not None and values.get("json") is not None:
        raise InvalidArguments(f"{REQUEST}: a request has a body or json, not both")
    for name in ("timeout", "max_bytes"):
        if values.get(name) is not None and not values[name] > 0:
            raise InvalidArguments(f"{REQUEST}: {name} must be greater than 0")
    try:
        check_headers(values.get("headers") or {})
    except InvalidSetting as wrong:
        raise InvalidArguments(f"{REQUEST}: {wrong.message}") from None
    except Refused as refused:
        raise InvalidArguments(refused.message, code="secret_in_payload", fix=refused.fix) from None


def _job_headers(ctx: Context, method: str, headers: Mapping[str, Any], json: Any) -> dict[str, Any]:
    """The payload's headers, with a content type for JSON and an idempotency key for unsafe methods."""
    result: dict[str, Any] = dict(headers)
    names = {name.lower() for name in result}
    if json is not None and "content-type" not in names:
        result["Content-Type"] = "application/json"
    if method in _UNSAFE and "idempotency-key" not in names:
        result["Idempotency-Key"] = ctx.idempotency_key
    return result


def _failure(ctx: Context, response: Answer, secrets: list[bytes]) -> Ended:
    """The outcome of an unexpected status. The delay of a retry respects ``Retry-After``."""
    excerpt = without(response.body, secrets)[: 4 * EXCERPT].decode("utf-8", "replace")
    excerpt = one_line(ctx._run.redact(excerpt, EXCERPT), EXCERPT).strip()
    message = f"{response.origin} answered {response.status}" + (f": {excerpt}" if excerpt else "")
    if response.status not in RETRIED_STATUSES:
        return Ended(Failed("http_rejected", message, final=True, note={"status": response.status}))
    since = http_date(response.header("date")) or datetime.now(UTC)
    after = retry_after_delay(response.header("retry-after"), since, LONGEST_WAIT)
    return Ended(Failed("http_unavailable", message, no_sooner=after, note={"status": response.status}))


async def _result(ctx: Context, response: Answer, secrets: list[bytes], keep: list[str]) -> HttpResult:
    names = {*RESULT_HEADERS, *(name.lower() for name in keep)}
    headers = {
        name: without(value.encode("latin-1"), secrets).decode("latin-1")
        for name, value in response.headers
        if name in names
    }
    body = without(response.body, secrets)
    elapsed = int(response.elapsed * 1000)
    result = HttpResult(status=response.status, headers=headers, size=len(body), elapsed_ms=elapsed)
    text = _as_text(body)
    if text is None:
        result["artifact"] = await ctx.artifact("body", data=body, meta={"size": len(body)})
        return result
    if "json" in headers.get("content-type", ""):
        with suppress(InvalidPayload):  # invalid JSON is returned as text
            result["json"] = decode(text)
            return result
    result["body"] = text
    return result


def _as_text(body: bytes) -> str | None:
    """The body as text; None if it is too large to be stored with the job, or not text that a database can store."""
    if len(body) > INLINE or b"\0" in body:
        return None
    try:
        return body.decode("utf-8")
    except UnicodeDecodeError:
        return None
