"""``http.request`` (JF-8): a job that is one request, sent through the guard, and tried again where that may help.

At least once: whoever dies between the answer and the end of the job asks again, with the same ``Idempotency-Key``.
What the job may reach, and with which secrets, is its tenant's settings; the payload has names of secrets only.
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
from holdfast.engine.retry import asked_delay, http_date
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
"""A larger answer lies in the artifact store."""
EXCERPT: Final = 300
LONGEST_WAIT: Final = 86_400.0
KEPT: Final = ("content-type", "etag", "last-modified", "location", "x-request-id")
AGAIN: Final = frozenset({408, 425, 429, *range(500, 600)})
_UNSAFE: Final = frozenset({"POST", "PUT", "PATCH", "DELETE"})


class HttpResult(TypedDict, total=False):
    """``json`` or ``body`` where the answer is text and small, else ``artifact``: where it lies."""

    status: int
    headers: dict[str, str]
    size: int
    elapsed_ms: int
    json: Any
    body: str
    artifact: str


def requester(reach: Outbound) -> Callable[..., Awaitable[HttpResult]]:
    """The handler."""

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
        own = _own_headers(ctx, method, headers or {}, json)
        try:
            policy = reach.narrowed(settings, timeout, max_bytes).redirecting(redirects)
            made, secrets = await reach.headers(ctx, settings, own)
            if secrets and not policy.plain_secrets:
                policy = policy.secure()
            data = codec.dumps(json).encode() if json is not None else (body or "").encode()
            answer = await send(Outgoing(method, url, made, data), policy)
        except EgressError as error:
            raise unsent(error) from None
        return await _judged(ctx, answer, secrets, expect, keep or [])

    return http_request


def check_request(values: Mapping[str, Any]) -> None:
    """What can be said of a payload before anything is stored: above all that no secret is in it."""
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


def unsent(error: EgressError) -> Ended:
    """What was refused, or is too large, is so the next time."""
    return Ended(Failed(error.code, error.message, final=isinstance(error, EgressRefused | EgressTooLarge)))


def _own_headers(ctx: Context, method: str, headers: Mapping[str, Any], json: Any) -> dict[str, Any]:
    own: dict[str, Any] = dict(headers)
    named = {name.lower() for name in own}
    if json is not None and "content-type" not in named:
        own["Content-Type"] = "application/json"
    if method in _UNSAFE and "idempotency-key" not in named:
        own["Idempotency-Key"] = ctx.idempotency_key
    return own


async def _judged(
    ctx: Context, answer: Answer, secrets: list[bytes], expect: list[int] | None, keep: list[str]
) -> HttpResult:
    fine = answer.status in expect if expect else 200 <= answer.status < 300
    if fine:
        return await _result(ctx, answer, secrets, keep)
    said = without(answer.body, secrets)[: 4 * EXCERPT].decode("utf-8", "replace")
    said = one_line(ctx._run.redact(said, EXCERPT), EXCERPT).strip()
    message = f"{answer.origin} answered {answer.status}" + (f": {said}" if said else "")
    if answer.status not in AGAIN:
        raise Ended(Failed("http_rejected", message, final=True, note={"status": answer.status}))
    since = http_date(answer.header("date")) or datetime.now(UTC)
    after = asked_delay(answer.header("retry-after"), since, LONGEST_WAIT)
    raise Ended(Failed("http_unavailable", message, no_sooner=after, note={"status": answer.status}))


async def _result(ctx: Context, answer: Answer, secrets: list[bytes], keep: list[str]) -> HttpResult:
    wanted = {*KEPT, *(name.lower() for name in keep)}
    headers = {
        name: without(value.encode("latin-1"), secrets).decode("latin-1")
        for name, value in answer.headers
        if name in wanted
    }
    body = without(answer.body, secrets)
    elapsed = int(answer.elapsed * 1000)
    made = HttpResult(status=answer.status, headers=headers, size=len(body), elapsed_ms=elapsed)
    text = _as_text(body)
    if text is None:
        made["artifact"] = await ctx.artifact("body", data=body, meta={"size": len(body)})
        return made
    if "json" in headers.get("content-type", ""):
        with suppress(InvalidPayload):  # then it is text
            made["json"] = decode(text)
            return made
    made["body"] = text
    return made


def _as_text(body: bytes) -> str | None:
    """None for what is too large to lie with the job, or is no text that a database keeps."""
    if len(body) > INLINE or b"\0" in body:
        return None
    try:
        return body.decode("utf-8")
    except UnicodeDecodeError:
        return None
