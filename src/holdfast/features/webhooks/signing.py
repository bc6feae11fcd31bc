"""Standard Webhooks (JF-9; rules 7 to 9): what is signed, how, and how a receiver checks it. Pure.

What is signed are the bytes ``id.timestamp.body``, so that none of the three can be changed or used again with
another. An id without a full stop and a timestamp of digits make the text readable in one way only. A message has as
many signatures as there are secrets, so that a secret can be changed while both sides still know the old one.
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
LEAST_KEY: Final = 24
MOST_KEY: Final = 64
TOLERANCE: Final = 300.0
"""How far, in seconds, the clock of the sender may be from the receiver's, in both directions."""
MOST_SECRETS: Final = 5
MOST_SIGNATURES: Final = 20
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
    """A message that was checked. The same ``id`` comes again when a message is sent again: it is to be done once."""

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
    """The key of a secret: base64 of 24 to 64 bytes behind ``whsec_``. What is wrong is said without the secret."""
    if not isinstance(secret, str) or not secret.startswith(PREFIX):
        raise _bad_secret(f"a secret for webhooks begins with {PREFIX}")
    try:
        key = base64.b64decode(secret[len(PREFIX) :].encode("ascii"), validate=True)
    except (binascii.Error, UnicodeEncodeError):
        raise _bad_secret(f"what follows {PREFIX} is not base64") from None
    if not LEAST_KEY <= len(key) <= MOST_KEY:
        raise _bad_secret(f"a secret for webhooks has {LEAST_KEY} to {MOST_KEY} bytes, not {len(key)}")
    return key


def secret_of(key: bytes) -> str:
    """The other way: random bytes as a secret."""
    text = PREFIX + base64.b64encode(key).decode("ascii")
    key_of(text)
    return text


def keys_of(secrets: object) -> list[bytes]:
    if not isinstance(secrets, Iterable):
        raise _bad_secret(
            f"a secret for webhooks is text, or there are several in a list; not {type(secrets).__name__}"
        )
    given = [secrets] if isinstance(secrets, str) else list(secrets)
    if not 1 <= len(given) <= MOST_SECRETS:
        raise _bad_secret(f"there are 1 to {MOST_SECRETS} secrets, not {len(given)}")
    return [key_of(secret) for secret in given]


def signature(key: bytes, id: str, timestamp: int, body: bytes) -> str:
    signed = b".".join((id.encode(), str(timestamp).encode(), body))
    return f"{VERSION},{base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()}"


def sign(secrets: str | Sequence[str], id: object, timestamp: int, body: bytes) -> dict[str, str]:
    """The three headers of a message, with one signature a secret, in their order."""
    if not isinstance(body, bytes | bytearray | memoryview):
        raise _malformed("the body is signed as it is sent, in bytes")
    if not isinstance(id, str) or not _ID.fullmatch(id):
        raise InvalidInput("a message id must be plain text without a period", code="webhook_malformed")
    if not 0 <= timestamp < 10**12:
        raise InvalidInput("a message's time must be in seconds since 1970", code="webhook_malformed")
    signatures = [signature(key, id, timestamp, body) for key in keys_of(secrets)]
    return {ID: id, TIMESTAMP: str(timestamp), SIGNATURE: " ".join(signatures)}


def verify(
    headers: Headers, body: bytes, secrets: str | Sequence[str], *, now: float, tolerance: float = TOLERANCE
) -> Message:
    """The message, if one of the secrets signed it and its time is now; else ``InvalidInput`` or ``Refused``.

    Every signature is compared with every key in constant time, also after one was found. Signatures of versions that
    are not known are passed over.
    """
    keys = keys_of(secrets)
    if not isinstance(body, bytes | bytearray | memoryview):
        raise _malformed("the body is checked as it came, in bytes")
    body = bytes(body)
    if len(body) > BODY_LIMIT:
        raise _malformed(f"the body has more than {BODY_LIMIT:,} bytes")
    found = _three(headers)
    id, stamp = found[ID], found[TIMESTAMP]
    if not _ID.fullmatch(id):
        raise _malformed(f"{ID} is not an id")
    if not _TIMESTAMP.fullmatch(stamp):
        raise _malformed(f"{TIMESTAMP} is not a number of seconds")
    given = [part.encode() for part in found[SIGNATURE].split(" ") if part.startswith(f"{VERSION},")]
    if not given or len(given) > MOST_SIGNATURES:
        raise _malformed(f"{SIGNATURE} has no signature of version {VERSION}, or too many")
    timestamp, fits = int(stamp), False
    for key in keys:
        expected = signature(key, id, timestamp, body).encode()
        for each in given:
            fits |= hmac.compare_digest(expected, each)
    if not fits:
        raise Refused("the signature matches none of the secrets", code="webhook_signature")
    if abs(now - timestamp) > tolerance:
        raise Refused(
            f"the message was signed more than {tolerance:g} s ago or ahead",
            code="webhook_timestamp",
            fix="Correct the clock. A message that is sent again gets a new signature.",
        )
    return Message(id, timestamp, body)


def _three(headers: Headers) -> dict[str, str]:
    """Our headers out of whatever a framework has them in: any case, text or bytes, pairs or a mapping."""
    found: dict[str, str] = {}
    try:
        pairs = list(headers.items() if isinstance(headers, Mapping) else headers)
        for name, value in pairs:
            known = _text(name).lower()
            if known in (ID, TIMESTAMP, SIGNATURE):
                if known in found:
                    raise _malformed(f"there are two of {known}")
                found[known] = _text(value)
    except (TypeError, ValueError):
        raise _malformed("the headers are a mapping, or pairs, of text") from None
    for name in (ID, TIMESTAMP, SIGNATURE):
        if name not in found:
            raise _malformed(f"there is no header {name}")
        if len(found[name]) > _HEADER_LIMIT or not found[name].isascii():
            raise _malformed(f"{name} is too long, or not plain text")
    return found


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
