"""Verify messages of providers: Standard Webhooks, GitHub, Stripe and Slack. Pure.

Every signature is compared with every key in constant time, also after a match. What the provider does not sign decides
nothing: the id of a message that is accepted once is signed, or a hash of what is.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import parse_qsl

from holdfast.engine.payload import decode
from holdfast.errors import InvalidInput, InvalidPayload, Refused
from holdfast.features.webhooks import signing
from holdfast.features.webhooks.signing import Headers

MIN_SECRET: Final = 16
"""Characters. Shorter secrets can be guessed from one signed message."""
MAX_FIELDS: Final = 200
_HEADER_LIMIT: Final = 4_000
_HEX: Final = re.compile(r"[0-9a-f]{64}")
_STAMP: Final = re.compile(r"[0-9]{1,12}")


@dataclass(frozen=True, slots=True)
class Received:
    """A verified message. One that is sent again has the same ``id``. ``delivery`` is the provider's number of the
    delivery, which is not signed; ``challenge`` is to be sent back, and the message is no more than that."""

    id: str
    type: str
    body: dict[str, Any]
    delivery: str | None = None
    challenge: str | None = None


@dataclass(frozen=True, slots=True)
class _Request:
    headers: Mapping[str, str]
    body: bytes
    secrets: tuple[str, ...]
    now: float
    tolerance: float

    def header(self, name: str) -> str:
        value = self.headers.get(name)
        if value is None:
            raise _malformed(f"there is no header {name}")
        if len(value) > _HEADER_LIMIT or not value.isascii():
            raise _malformed(f"{name} is too long, or not plain text")
        return value

    def check(self, signed: bytes, signatures: Sequence[str]) -> None:
        """Compare hexadecimal HMAC-SHA256 signatures with those of every secret."""
        if not 1 <= len(signatures) <= signing.MAX_SIGNATURES or not all(map(_HEX.fullmatch, signatures)):
            raise _malformed("the signature is not a hexadecimal SHA-256")
        matches = False
        for secret in self.secrets:
            expected = hmac.new(secret.encode(), signed, hashlib.sha256).hexdigest()
            for signature in signatures:
                matches |= hmac.compare_digest(expected, signature)
        if not matches:
            raise Refused("the signature matches none of the secrets", code="webhook_signature")

    def check_time(self, stamp: str) -> None:
        """Check a time that is signed, after the signature."""
        if abs(self.now - int(stamp)) > self.tolerance:
            raise Refused(
                f"the message was signed more than {self.tolerance:g} s ago or ahead", code="webhook_timestamp"
            )

    def content(self) -> dict[str, Any]:
        """The body: a JSON object, or a form. Which one follows from the body, because its type is not signed."""
        try:
            text = self.body.decode()
            if text.lstrip()[:1] == "{":
                return _object(decode(text))
            form = dict(parse_qsl(text, strict_parsing=True, max_num_fields=MAX_FIELDS))
            if not form:
                raise ValueError
            return _object(decode(form["payload"])) if "payload" in form else dict(form)
        except (InvalidPayload, ValueError, RecursionError):
            raise _malformed(
                "the body is neither a JSON object nor a form, or has values that cannot be stored"
            ) from None


def verify(
    provider: str, headers: Headers, body: bytes, secrets: Iterable[str], *, now: float, tolerance: float
) -> Received:
    """Return the message if one of the secrets signed it, and recently where the provider signs the time; else raise
    ``InvalidInput`` or ``Refused``."""
    if not isinstance(body, bytes | bytearray | memoryview):
        raise _malformed("the body must be the bytes that were received")
    keys = tuple(secrets)
    if not keys or min(map(len, keys)) < MIN_SECRET:
        raise InvalidInput(f"a secret must have at least {MIN_SECRET} characters", code="webhook_secret")
    return PROVIDERS[provider](_Request(_named(headers), bytes(body), keys, now, tolerance))


def _standard(request: _Request) -> Received:
    message = signing.verify(
        request.headers, request.body, request.secrets, now=request.now, tolerance=request.tolerance
    )
    body = request.content()
    return Received(message.id, _text(body.get("type")), body)


def _github(request: _Request) -> Received:
    """GitHub signs the body only. So the id is a hash of the body, and neither the time nor the number of the delivery
    protects against a replay."""
    request.check(request.body, [request.header("x-hub-signature-256").removeprefix("sha256=")])
    id = f"sha256:{hashlib.sha256(request.body).hexdigest()}"
    delivery = request.headers.get("x-github-delivery", "")[:100] or None
    return Received(id, _text(request.headers.get("x-github-event")), request.content(), delivery)


def _stripe(request: _Request) -> Received:
    pairs = [part.strip().partition("=") for part in request.header("stripe-signature").split(",")]
    stamps = [value for name, _, value in pairs if name == "t"]
    if len(stamps) != 1 or not _STAMP.fullmatch(stamps[0]):
        raise _malformed("stripe-signature has no time")
    signed = b".".join((stamps[0].encode(), request.body))
    request.check(signed, [value for name, _, value in pairs if name == "v1"])
    request.check_time(stamps[0])
    body = request.content()
    if not isinstance(body.get("id"), str):
        raise _malformed("the body has no id")
    return Received(body["id"], _text(body.get("type")), body)


def _slack(request: _Request) -> Received:
    stamp, signature = request.header("x-slack-request-timestamp"), request.header("x-slack-signature")
    if not _STAMP.fullmatch(stamp):
        raise _malformed("x-slack-request-timestamp is not a number of seconds")
    request.check(b":".join((b"v0", stamp.encode(), request.body)), [signature.removeprefix("v0=")])
    request.check_time(stamp)
    body = request.content()
    inner = body.get("event")
    type = inner.get("type") if isinstance(inner, dict) else body.get("type", body.get("command"))
    challenge = body.get("challenge") if body.get("type") == "url_verification" else None
    id = body.get("event_id")  # commands and clicks have none; they are not sent again
    return Received(
        id if isinstance(id, str) else signature,
        _text(type).lstrip("/"),
        body,
        challenge=challenge if isinstance(challenge, str) else None,
    )


PROVIDERS: Final[dict[str, Callable[[_Request], Received]]] = {
    "standard": _standard,
    "github": _github,
    "stripe": _stripe,
    "slack": _slack,
}
SIGNATURE_HEADERS: Final = frozenset(
    {signing.SIGNATURE, "x-hub-signature-256", "stripe-signature", "x-slack-signature"}
)


def _named(headers: Headers) -> dict[str, str]:
    """The headers by lower-case name, from any framework's representation. One that decides must not be repeated."""
    values: dict[str, str] = {}
    try:
        for name, value in headers.items() if isinstance(headers, Mapping) else headers:
            lower, text = (each.decode("latin-1") if isinstance(each, bytes) else each for each in (name, value))
            lower = lower.lower()
            if lower in values and (lower in SIGNATURE_HEADERS or lower.endswith("timestamp")):
                raise _malformed(f"there are two headers {lower}")
            values[lower] = text
    except (TypeError, ValueError, AttributeError):
        raise _malformed("the headers must be a mapping, or pairs, of text") from None
    return values


def _object(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError("not an object")
    return value


def _text(value: object) -> str:
    return value if isinstance(value, str) else "message"


def _malformed(why: str) -> InvalidInput:
    return InvalidInput(why, code="webhook_malformed")
