"""Sealing text with a key (AES-256-GCM), for what jobs carry and keep, at rest. Needs the extra ``crypto``.

Keys come from the environment, HOLDFAST_KEYS="2027-01:<base64>,2026-07:<base64>"; the first one seals, all open.
What is sealed is bound to its tenant, its job and what it is, so that it opens nowhere else.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import os
import re
from collections.abc import Mapping
from typing import Any, Final

from holdfast.errors import InvalidSetting, Refused

KEYS_VARIABLE: Final = "HOLDFAST_KEYS"
KEY_BYTES: Final = 32
NONCE_BYTES: Final = 12
_NAME: Final = re.compile(r"[A-Za-z0-9._\-]{1,40}")


class KeyRing:
    """Named keys; the first is the current one. Never shown."""

    def __init__(self, keys: Mapping[str, bytes]) -> None:
        cipher = _cipher()
        for name, key in keys.items():
            if not _NAME.fullmatch(name) or len(key) != KEY_BYTES:
                raise _invalid(f"key {name[:40]!r} is not a name of plain letters with {KEY_BYTES} bytes in base64")
        if not keys:
            raise _invalid("there is no key")
        self._ciphers = {name: cipher(key) for name, key in keys.items()}
        self.current = next(iter(keys))
        self._oldest = hmac.digest(list(keys.values())[-1], b"holdfast digest", "sha256")

    @classmethod
    def of(cls, text: str) -> KeyRing:
        """As the environment has it. A refusal names a key by its number, never by what may be the key itself."""
        keys: dict[str, bytes] = {}
        for number, entry in enumerate(filter(None, (part.strip() for part in text.split(","))), 1):
            name, colon, value = entry.partition(":")
            try:
                key = base64.b64decode(value, validate=True)
            except (binascii.Error, ValueError):
                key = b""
            if not colon or not _NAME.fullmatch(name) or len(key) != KEY_BYTES or name in keys:
                raise _invalid(f"entry {number} is not a new name, a colon and {KEY_BYTES} bytes in base64")
            keys[name] = key
        return cls(keys)

    def __repr__(self) -> str:
        return f"KeyRing({', '.join(self.names)})"

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._ciphers)

    def digest(self, text: str) -> str:
        """Under the oldest key, so that it stays the same while keys are changed."""
        return hmac.digest(self._oldest, text.encode(), "sha256").hex()

    def seal(self, text: str, bound_to: str) -> tuple[str, str]:
        """The name of the key, and what was sealed, as base64."""
        nonce = os.urandom(NONCE_BYTES)
        data = self._ciphers[self.current].encrypt(nonce, text.encode(), bound_to.encode())
        return self.current, base64.b64encode(nonce + data).decode()

    def open(self, key: str, sealed: str, bound_to: str) -> str:
        cipher = self._ciphers.get(key)
        if cipher is None:
            raise Refused(
                f"it is sealed with key {key!r}, which is not here",
                code="key_unknown",
                fix=f"Put it into {KEYS_VARIABLE}; the first one there seals, all of them open.",
            )
        from cryptography.exceptions import InvalidTag

        try:
            data = base64.b64decode(sealed, validate=True)
            opened: bytes = cipher.decrypt(data[:NONCE_BYTES], data[NONCE_BYTES:], bound_to.encode())
            return opened.decode()
        except (InvalidTag, ValueError) as error:
            raise Refused(
                f"it is not what was sealed here with key {key!r}: changed, or another job's", code="seal_broken"
            ) from error


def new_key() -> str:
    return base64.b64encode(os.urandom(KEY_BYTES)).decode()


def _invalid(why: str) -> InvalidSetting:
    return InvalidSetting(
        f"{KEYS_VARIABLE}: {why}",
        code="invalid_keys",
        fix='Write name:key,name:key; "holdfast keys generate" makes one.',
    )


def _cipher() -> Any:
    try:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    except ImportError as error:
        raise InvalidSetting(
            "sealing needs an extra that is not installed", code="missing_extra", fix="pip install 'holdfast[crypto]'"
        ) from error
    return AESGCM
