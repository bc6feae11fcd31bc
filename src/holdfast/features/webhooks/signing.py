"""Sign and verify messages as defined by Standard Webhooks. Pure.

The signature covers the bytes ``id.timestamp.body``, so that none of the three can be changed or combined with another.
An id without a period and a timestamp of digits make the text unambiguous. A message has one signature per secret, so
that a secret can be rotated while both sides still know the old one.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from holdfast.engine.payload import decode
from holdfast.errors import InvalidInput, InvalidPayload, InvalidSetting, Refused

PREFIX: Final = "whsec_"
VERSION: Final = "v1"
MIN_KEY: Final = 24
MAX_KEY: Final = 64
TOLERANCE: Final = 300.0
"""Maximum difference, in seconds, between the clocks of sender and receiver, in both directions."""
MAX_SECRETS: Final = 5
MAX_SIGNATURES: Final = 20
BODY_LIMIT: Final = 2 * 1024 * 1024

ID: Final = "webhook-id"
TIMESTAMP: Final = "webhook-timestamp"
SIGNATURE: Final = "webhook-signature"

_ID: Final = re.compile(r"[!-\-/-~]{1,200}")  # printable, without white space and the full stop
_TIMESTAMP: Final = re.compile(r"[0-9]{1,12}")
_HEADER_LIMIT: Final = 4_000

Headers = Mapping[str, Any] | Iterable[tuple[Any, Any]]


@dataclass(frozen=True, slots=True)
class Message:
    """A verified message. A message that is sent again has the same ``id``: process each id once."""

    id: str
    timestamp: int
    body: bytes

    def json(self) -> dict[str, Any]:
        """The body: ``type``, ``timestamp`` and ``data``."""
        try:
            value = decode(self.body.decode())
        except (InvalidPayload, UnicodeDecodeError):
            raise _malformed("the body is not JSON") from None
        if not isinstance(value, dict):
            raise _malformed("the body is not a JSON object")
        return value


def key_of(secret: object) -> bytes:
    """The key of a secret: base64 of 24 to 64 bytes after ``whsec_``. Errors do not contain the secret."""
    if not isinstance(secret, str) or not secret.startswith(PREFIX):
        raise _bad_secret(f"a webhook secret must begin with {PREFIX}")
    try:
        key = base64.b64decode(secret[len(PREFIX) :].encode("ascii"), validate=True)
    except (binascii.Error, UnicodeEncodeError):
        raise _bad_secret(f"the text after {PREFIX} is not base64") from None
    if not MIN_KEY <= len(key) <= MAX_KEY:
        raise _bad_secret(f"a webhook secret must have {MIN_KEY} to {MAX_KEY} bytes, not {len(key)}")
    return key


def secret_of(key: bytes) -> str:
    """The secret of a key of random bytes."""
    text = PREFIX + base64.b64encode(key).decode("ascii")
    key_of(text)
    return text


def keys_of(secrets: object) -> list[bytes]:
    if not isinstance(secrets, Iterable):
        raise _bad_secret(f"a webhook secret must be text, or several secrets a list, not {type(secrets).__name__}")
    listed = [secrets] if isinstance(secrets, str) else list(secrets)
    if not 1 <= len(listed) <= MAX_SECRETS:
        raise _bad_secret(f"expected 1 to {MAX_SECRETS} secrets, got {len(listed)}")
    return [key_of(secret) for secret in listed]


def signature(key: bytes, id: str, timestamp: int, body: bytes) -> str:
    signed = b".".join((id.encode(), str(timestamp).encode(), body))
    return f"{VERSION},{base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()}"


def sign(secrets: str | Sequence[str], id: object, timestamp: int, body: bytes) -> dict[str, str]:
    """The three headers of a message, with one signature per secret, in their order."""
    if not isinstance(body, bytes | bytearray | memoryview):
        raise _malformed("the body must be the bytes that are sent")
    if not isinstance(id, str) or not _ID.fullmatch(id):
        raise InvalidInput("a message id must be plain text without a period", code="webhook_malformed")
    if not 0 <= timestamp < 10**12:
        raise InvalidInput("a message's time must be in seconds since 1970", code="webhook_malformed")
    signatures = [signature(key, id, timestamp, body) for key in keys_of(secrets)]
    return {ID: id, TIMESTAMP: str(timestamp), SIGNATURE: " ".join(signatures)}


def verify(
    headers: Headers, body: bytes, secrets: str | Sequence[str], *, now: float, tolerance: float = TOLERANCE
) -> Message:
    """Return the message if one of the secrets signed it recently; else raise ``InvalidInput`` or ``Refused``.

    Every signature is compared with every key in constant time, also after a match. Signatures of unknown versions are
    ignored.
    """
    keys = keys_of(secrets)
    if not isinstance(body, bytes | bytearray | memoryview):
        raise _malformed("the body must be the bytes that were received")
    body = bytes(body)
    if len(body) > BODY_LIMIT:
        raise _malformed(f"the body has more than {BODY_LIMIT:,} bytes")
    values = _signature_headers(headers)
    id, stamp = values[ID], values[TIMESTAMP]
    if not _ID.fullmatch(id):
        raise _malformed(f"{ID} is not an id")
    if not _TIMESTAMP.fullmatch(stamp):
        raise _malformed(f"{TIMESTAMP} is not a number of seconds")
    signatures = [part.encode() for part in values[SIGNATURE].split(" ") if part.startswith(f"{VERSION},")]
    if not signatures or len(signatures) > MAX_SIGNATURES:
        raise _malformed(f"{SIGNATURE} has no signature of version {VERSION}, or too many")
    timestamp, matches = int(stamp), False
    for key in keys:
        expected = signature(key, id, timestamp, body).encode()
        for received in signatures:
            matches |= hmac.compare_digest(expected, received)
    if not matches:
        raise Refused("the signature matches none of the secrets", code="webhook_signature")
    if abs(now - timestamp) > tolerance:
        raise Refused(
            f"the message was signed more than {tolerance:g} s ago or ahead",
            code="webhook_timestamp",
            fix="Correct the clock. A message that is sent again gets a new signature.",
        )
    return Message(id, timestamp, body)


def _signature_headers(headers: Headers) -> dict[str, str]:
    """The three headers, from any framework's representation: any case, text or bytes, pairs or a mapping."""
    values: dict[str, str] = {}
    try:
        pairs = list(headers.items() if isinstance(headers, Mapping) else headers)
        for name, value in pairs:
            lower = _text(name).lower()
            if lower in (ID, TIMESTAMP, SIGNATURE):
                if lower in values:
                    raise _malformed(f"there are two headers {lower}")
                values[lower] = _text(value)
    except (TypeError, ValueError):
        raise _malformed("the headers must be a mapping, or pairs, of text") from None
    for name in (ID, TIMESTAMP, SIGNATURE):
        if name not in values:
            raise _malformed(f"there is no header {name}")
        if len(values[name]) > _HEADER_LIMIT or not values[name].isascii():
            raise _malformed(f"{name} is too long, or not plain text")
    return values


def _text(value: object) -> str:
    if isinstance(value, bytes):
        return value.decode("latin-1")
    if not isinstance(value, str):
        raise TypeError
    return value


def _malformed(why: str) -> InvalidInput:
    return InvalidInput(why, code="webhook_malformed")


def _bad_secret(why: str) -> InvalidSetting:
    return InvalidSetting(why, code="webhook_secret", fix="Generate one: holdfast webhooks secret")
