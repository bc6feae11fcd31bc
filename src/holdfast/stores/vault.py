"""``Vault``: how payloads, results, step results and checkpoints are stored: inline, sealed, or by reference.

A packed value is ``{"$holdfast": {"key": …, "sealed": …}}`` or ``{"$holdfast": {"stored": "artifact://…"}}``: with the
``key`` if the stored content is sealed, and with its ``size`` if it is a step result or a checkpoint. Payloads of
applications may not have this form. Packing needs the payload rule of the kind; opening needs only the keys and the
artifact store.

``KeyRing`` seals text with AES-256-GCM and needs the extra ``crypto``. Keys come from the environment,
HOLDFAST_KEYS="2027-01:<base64>,2026-07:<base64>"; the first one seals, all of them open. A sealed text is bound to its
tenant, its job and its role (payload, result, …), so that it cannot be opened as anything else.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import hashlib
import hmac
import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from holdfast.engine.payload import DEFAULT_LIMIT, MARK, Unreadable, decode, encode, refuse_reserved
from holdfast.errors import Conflict, InvalidPayload, InvalidSetting, Refused
from holdfast.features.payloads.model import Effective
from holdfast.stores.artifacts import SCHEME, Artifacts, open_artifacts
from holdfast.stores.requests import new_id

KEYS_VARIABLE: Final = "HOLDFAST_KEYS"
KEY_BYTES: Final = 32
NONCE_BYTES: Final = 12
_NAME: Final = re.compile(r"[A-Za-z0-9._\-]{1,40}")


class KeyRing:
    """Named keys; the first is the current one. Keys are never shown."""

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
        """Parse the environment variable. Errors name an entry by its number, never by text that may be the key."""
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
        """A digest under the oldest key, so that it does not change when a new key is added."""
        return hmac.digest(self._oldest, text.encode(), "sha256").hex()

    def seal(self, text: str, bound_to: str) -> tuple[str, str]:
        """Seal a text; returns the name of the key and the sealed text as base64."""
        nonce = os.urandom(NONCE_BYTES)
        data = self._ciphers[self.current].encrypt(nonce, text.encode(), bound_to.encode())
        return self.current, base64.b64encode(nonce + data).decode()

    def open(self, key: str, sealed: str, bound_to: str) -> str:
        cipher = self._ciphers.get(key)
        if cipher is None:
            raise Refused(
                f"it is sealed with key {key!r}, which is not configured",
                code="key_unknown",
                fix=f"Add it to {KEYS_VARIABLE}. The first key encrypts; all of them decrypt.",
            )
        from cryptography.exceptions import InvalidTag

        try:
            data = base64.b64decode(sealed, validate=True)
            opened: bytes = cipher.decrypt(data[:NONCE_BYTES], data[NONCE_BYTES:], bound_to.encode())
            return opened.decode()
        except (InvalidTag, ValueError) as error:
            raise Refused(
                f"it was changed after it was sealed with key {key!r}, or belongs to another job", code="seal_broken"
            ) from error


def new_key() -> str:
    return base64.b64encode(os.urandom(KEY_BYTES)).decode()


def _invalid(why: str) -> InvalidSetting:
    return InvalidSetting(
        f"{KEYS_VARIABLE}: {why}",
        code="invalid_keys",
        fix='Write name:key,name:key. Generate a key with "holdfast keys generate".',
    )


def _cipher() -> Any:
    try:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    except ImportError as error:
        raise InvalidSetting(
            "sealing needs an extra that is not installed", code="missing_extra", fix="pip install 'holdfast[crypto]'"
        ) from error
    return AESGCM


NAME: Final = "$holdfast"
STORED_LIMIT: Final = 64 * 1024 * 1024
"""Maximum size of a value in the artifact store, which is read into memory as a whole."""

What = Literal["payload", "result", "step", "checkpoint", "log"]


@dataclass(frozen=True, slots=True)
class Part:
    """A packed step result or checkpoint. ``text`` is for the database. If the value is large, ``data`` is stored in
    the artifact store under ``ref`` first."""

    text: str
    ref: str | None = None
    data: bytes = b""


@dataclass(frozen=True, slots=True)
class Vault:
    """Packs and opens values. Without artifacts and keys it changes nothing."""

    artifacts: Artifacts | None = None
    keys: KeyRing | None = None

    @classmethod
    def of(cls, artifacts: Any, keys: str | None) -> Vault:
        """The vault for these settings; ``EMPTY`` if there are none."""
        opened = open_artifacts(artifacts)
        if opened is None and not keys:
            return EMPTY
        return cls(opened, KeyRing.of(keys) if keys else None)

    def digest(self, text: str) -> str:
        """A digest to compare texts by. With keys, it reveals nothing else to a reader without them."""
        return hashlib.sha256(text.encode()).hexdigest() if self.keys is None else self.keys.digest(text)

    def keyed(self, digest: str) -> str:
        """An existing digest, keyed so that it can be stored beside sealed content."""
        return digest if self.keys is None else self.keys.digest(digest)

    def keeps_results(self, rule: Effective) -> bool:
        """Whether results are stored as they are: neither encrypted, limited nor stored elsewhere."""
        return self.keys is None and not rule.store and rule.limit_of("result") is None

    def limit(self, rule: Effective) -> int:
        """The maximum size of a text before it is packed."""
        return STORED_LIMIT if rule.store and self.artifacts is not None else DEFAULT_LIMIT

    def pack(self, text: str, rule: Effective, *, what: What, kind: str, tenant: str, job_id: str) -> str:
        """The text for the database. Raises before anything is written if a rule refuses it."""
        size = len(refuse_reserved(text, what).encode())
        most = rule.limit_of(what)
        elsewhere = size > min(DEFAULT_LIMIT if most is None else most, DEFAULT_LIMIT)
        if what == "payload" and rule.forbidden:
            # The database cannot check sealed or stored payloads for forbidden keys.
            refusal = Effective(rule.forbidden).refusal(kind, text)
            if refusal is not None:
                raise refusal
        if elsewhere and not (rule.store and self.artifacts is not None):
            raise _too_large(what, kind, size, min(most or DEFAULT_LIMIT, DEFAULT_LIMIT), rule)
        key = None
        if self.keys is not None:
            key, sealed = self.keys.seal(text, _bound_to(what, tenant, job_id))
            text = _packed(key=key, sealed=sealed)
        if elsewhere:
            assert self.artifacts is not None
            ref = self.artifacts.put(text.encode(), tenant=tenant, job_id=job_id)
            text = _packed(stored=ref) if key is None else _packed(key=key, stored=ref)
        return text

    def encode_part(self, value: object, what: str) -> str:
        """A step result or checkpoint as JSON text. Without an artifact store it must fit into the database."""
        with self.explained(what):
            return encode(value, limit=self.part_limit, what=what)

    @property
    def part_limit(self) -> int:
        return DEFAULT_LIMIT if self.artifacts is None else STORED_LIMIT

    @contextlib.contextmanager
    def explained(self, what: str) -> Iterator[None]:
        """Replace ``payload_too_large`` by an error about the missing artifact store: a worker that has one could store
        the value."""
        try:
            yield
        except InvalidPayload as error:
            if error.code != "payload_too_large" or self.artifacts is not None:
                raise
            raise _no_store(f"the {what} has more than {DEFAULT_LIMIT:,} bytes") from None

    def pack_part(self, text: str, *, what: What, tenant: str, job_id: str, place: str) -> Part:
        """Pack a step result or checkpoint; ``place`` is the number of the step or the name of the checkpoint."""
        size = len(refuse_reserved(text, what)) if text.isascii() else len(text.encode())
        key = None
        if self.keys is not None:
            key, sealed = self.keys.seal(text, _bound_to(what, tenant, job_id, place))
            text = _packed(key=key, sealed=sealed)
        if size <= DEFAULT_LIMIT:
            return Part(text)
        if self.artifacts is None:
            raise _no_store(f"the {what} has {size:,} bytes")
        # The first line makes every object unique: deleting an old object can never delete one that was saved later.
        data = f"{new_id()}\n{text}".encode()
        ref = self.artifacts.reference(data, tenant=tenant, job_id=job_id)
        size = len(data)
        packed = _packed(stored=ref, size=size) if key is None else _packed(key=key, stored=ref, size=size)
        return Part(packed, ref, data)

    def upload(self, part: Part, *, tenant: str, job_id: str) -> None:
        assert self.artifacts is not None
        self.artifacts.put(part.data, tenant=tenant, job_id=job_id)

    def open(self, text: str, *, what: What, tenant: str, job_id: str, place: str | None = None) -> str:
        """The text before it was packed. Raises if the key or the artifact store is missing."""
        if not text.startswith(MARK):
            return text
        if (ref := reference_in(text)) is not None:
            text = self._fetched(ref, tenant, _inside(text).get("size"))
        sealed = sealed_in(text)
        if sealed is None:
            return text
        if self.keys is None:
            raise Refused(
                f"the {what} is sealed with key {sealed[0]!r}, and no keys are configured",
                code="key_unknown",
                fix=f"Set {KEYS_VARIABLE}.",
            )
        return self.keys.open(*sealed, _bound_to(what, tenant, job_id, place))

    def reseal(self, opened: str, text: str, *, what: What, tenant: str, job_id: str, place: str | None = None) -> str:
        """Seal the opened content of ``text`` with the current key and store it where it was: inline or by
        reference."""
        assert self.keys is not None
        key, sealed = self.keys.seal(opened, _bound_to(what, tenant, job_id, place))
        packed = _packed(key=key, sealed=sealed)
        if reference_in(text) is None:
            return packed
        if self.artifacts is None:
            raise _no_store()
        if place is None:
            return _packed(key=key, stored=self.artifacts.put(packed.encode(), tenant=tenant, job_id=job_id))
        data = f"{new_id()}\n{packed}".encode()
        return _packed(key=key, stored=self.artifacts.put(data, tenant=tenant, job_id=job_id), size=len(data))

    def open_value(self, value: Any, ref: str | None, *, tenant: str, job_id: str) -> Any:
        """Open a result: its inline value, or the content of its reference."""
        if ref is not None and value is None and ref.startswith(SCHEME):
            value = {NAME: {"stored": ref}}
        return self._opened(value, what="result", tenant=tenant, job_id=job_id)

    def open_payload(self, value: Any, *, tenant: str, job_id: str) -> Any:
        """Open the payload of a job that was read."""
        return self._opened(value, what="payload", tenant=tenant, job_id=job_id)

    def open_part(self, value: Any, *, what: What, tenant: str, job_id: str, place: str) -> Any:
        """Open a step result or checkpoint. One that cannot be read must not be taken for a value."""
        if isinstance(value, Unreadable):
            raise InvalidPayload(f"the {what} {place!r} cannot be read: {value.why}", code="unreadable_value")
        return self._opened(value, what=what, tenant=tenant, job_id=job_id, place=place)

    def _opened(self, value: Any, **bound: Any) -> Any:
        if not isinstance(value, dict) or value.keys() != {NAME}:
            return value
        return decode(self.open(json.dumps(value, separators=(",", ":")), **bound))

    def _fetched(self, ref: str, tenant: str, size: Any) -> str:
        """The text of a stored object. Step results and checkpoints have a ``size``, and an id as their first line."""
        if self.artifacts is None:
            raise _no_store()
        data = self.artifacts.get(ref, tenant=tenant)
        if size is None:
            return data.decode()
        if len(data) != size:
            raise Conflict(f"{ref} has {len(data):,} bytes; {size} were recorded", code="artifact_changed")
        return data.decode().partition("\n")[2]

    def keep(self, data: bytes, *, tenant: str, job_id: str) -> str:
        """Store bytes of a handler, unsealed; returns the reference."""
        if self.artifacts is None:
            raise _no_store("an artifact is to be kept")
        return self.artifacts.put(data, tenant=tenant, job_id=job_id)

    def keep_file(self, path: Path, digest: str, *, tenant: str, job_id: str) -> str:
        """Store a file of a handler without reading it into memory."""
        if self.artifacts is None:
            raise _no_store("an artifact is to be kept")
        return self.artifacts.put_file(path, digest, tenant=tenant, job_id=job_id)

    def drop(self, text: str, *, tenant: str) -> None:
        """Delete the stored content of a text that was not written to the database."""
        ref = reference_in(text)
        if ref is not None and self.artifacts is not None:
            self.artifacts.delete(ref, tenant=tenant)


EMPTY: Final = Vault()


def is_packed(text: str) -> bool:
    return text.startswith(MARK)


def is_stored(value: Any) -> bool:
    """Whether the content of a value is in the artifact store."""
    inside = value.get(NAME) if isinstance(value, dict) and len(value) == 1 else None
    return isinstance(inside, dict) and "stored" in inside


def is_omitted(value: Any) -> bool:
    """Whether this stands for a value that is too large for the read (``read_budget``)."""
    inside = value.get(NAME) if isinstance(value, dict) and len(value) == 1 else None
    return isinstance(inside, dict) and "omitted" in inside


def reference_in(text: str) -> str | None:
    """The reference in a packed text, if its content is in the artifact store."""
    ref = _inside(text).get("stored")
    return ref if isinstance(ref, str) else None


def sealed_in(text: str) -> tuple[str, str] | None:
    """The name of the key and the sealed text, if the text is sealed."""
    inside = _inside(text)
    key, sealed = inside.get("key"), inside.get("sealed")
    return (key, sealed) if isinstance(key, str) and isinstance(sealed, str) else None


def shown(value: Any) -> Any:
    """A value for display: the key that a sealed value needs, the size of a stored one or of one that is too large for
    the page, others unchanged."""
    inside = value.get(NAME) if isinstance(value, dict) and len(value) == 1 else None
    if is_omitted(value):
        return f"{value[NAME]['omitted']:,} bytes: too large to be shown here"
    if isinstance(inside, dict) and "sealed" in inside:
        return f"sealed with key {inside.get('key')}"
    if isinstance(inside, dict) and isinstance(inside.get("size"), int):
        return f"{inside['size']:,} bytes in the artifact store"
    return value


def _inside(text: str) -> dict[str, Any]:
    if not text.startswith(MARK):
        return {}
    document = decode(text)
    inside = document.get(NAME) if isinstance(document, dict) and len(document) == 1 else None
    return inside if isinstance(inside, dict) else {}


def _packed(**inside: str | int) -> str:
    return json.dumps({NAME: inside}, separators=(",", ":"))


def _bound_to(what: What, tenant: str, job_id: str, place: str | None = None) -> str:
    return json.dumps([what, tenant, job_id] if place is None else [what, tenant, job_id, place])


def _too_large(what: What, kind: str, size: int, most: int, rule: Effective) -> Exception:
    message = f"the {what} of {kind} has {size:,} bytes; {most:,} are allowed"
    if rule.store:
        return _no_store(message)
    code = "payload_over_limit" if what == "payload" else "result_over_limit"
    return Refused(message, code=code, fix="Pass a reference, or store larger values: store=True.")


def _no_store(why: str = "it lies in an artifact store") -> InvalidSetting:
    return InvalidSetting(
        f"{why}, and no artifact store is configured",
        code="no_artifact_store",
        fix="Set App(artifacts=…) or HOLDFAST_ARTIFACTS to a directory or s3://bucket/prefix.",
    )
