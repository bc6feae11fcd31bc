"""``http.request``: a job that sends one HTTP request through the guarded client and retries temporary failures.

The request is sent at least once: if a worker dies between the response and the end of the job, the request is sent
again with the same ``Idempotency-Key``. The tenant's settings decide which hosts and secrets the job may use; the
payload contains only names of secrets.
"""

from __future__ import annotations

import json as codec
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, Final, TypedDict

from holdfast.context import Context
from holdfast.engine.outcome import Failed
from holdfast.engine.payload import decode
from holdfast.engine.redaction import one_line
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
from holdfast.features.connectors.model import check_headers
from holdfast.features.connectors.outbound import Outbound, without
from holdfast.outgoing import Answer, Outgoing, send
from holdfast.worker.shutdown import Ended

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
