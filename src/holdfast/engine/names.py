"""Checks of names, content keys of jobs, and cursors of pages.

Invariant: two different (kind, tenant, payload) never have the same content key, and the order of a payload's keys
never changes it.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable
from typing import Any, Final, NamedTuple, Protocol, TypedDict

from holdfast.engine.job import EVERY_TENANT
from holdfast.engine.payload import DEFAULT_LIMIT, JsonValue, canonical, decode
from holdfast.errors import InvalidInput, InvalidPayload, InvalidSetting

NO_TENANT: Final = "global"
NAME_LIMIT: Final = 100

# Control characters, line and paragraph separators, lone surrogates, and invisible characters that make two names look
# alike or change the text direction. The joiners U+200C and U+200D are allowed, because some scripts need them. Not
# str.isprintable, which changes with the Unicode version and so may differ between workers.
_INVISIBLE: Final = re.compile(
    "[\x00-\x1f\x7f-\x9f\u00ad\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ud800-\udfff\ufeff\ufff9-\ufffb]"
)


class NamedKind(Protocol):
    """A ``Kind``, where the name of a kind is expected."""

    @property
    def name(self) -> str: ...
    @property
    def parameters(self) -> tuple[str, ...]: ...


def kind_name(value: Any) -> Any:
    """The name of a ``Kind``; anything else unchanged."""
    return value.name if hasattr(value, "parameters") and hasattr(value, "name") else value


def check_name(value: object, what: str, *, limit: int = NAME_LIMIT) -> str:
    """The name as plain ``str``, or ``InvalidSetting`` with ``what`` in its message.

    For kinds, queues, tenants, tags and executors. ``*`` is refused, because it stands for every tenant. As a kind, a
    ``Kind`` is accepted too.
    """
    if what == "kind" and not isinstance(value, str):
        value = kind_name(value)
    if not isinstance(value, str):
        raise _invalid_name(what, f"must be text, not {type(value).__name__}")
    # The value of a string enum's member, which would otherwise print as its class and name.
    name = str.__str__(value)
    if not name or name.isspace():
        raise _invalid_name(what, "must not be blank")
    if len(name) > limit:
        raise _invalid_name(what, f"has {len(name):,} characters; at most {limit:,} are allowed")
    if name != name.strip():
        raise _invalid_name(what, "must not begin or end with white space")
    # Printable ASCII, like most names, needs no search.
    if not (name.isascii() and name.isprintable()) and _INVISIBLE.search(name):
        raise _invalid_name(what, "must not contain control or invisible characters")
    if name == "*":
        raise _invalid_name(what, "must not be '*', which stands for every tenant")
    return name


def check_names(values: object, what: str) -> tuple[str, ...]:
    """The names, or ``InvalidSetting``. One text is refused: its letters would count as names."""
    if isinstance(values, str) or not isinstance(values, Iterable):
        given = values if isinstance(values, str) else "NAME"
        raise InvalidSetting(
            f"{what}s must be a list of {what} names, not {type(values).__name__}",
            code="invalid_name",
            fix=f'Write {what}s=["{given}"].',
        )
    return tuple(check_name(value, what) for value in values)


def content_key(kind: str, tenant: str | None, payload: JsonValue, *, limit: int = DEFAULT_LIMIT) -> str:
    """``<kind>::<tenant or global>::<payload as JSON with sorted keys>``: the same work has the same key.

    A key can be parsed in one way only, because its first two ``::`` are the separators: kind and tenant may neither
    contain ``::`` nor end in ``:`` (else ``a:`` and ``b`` would give the same text as ``a`` and ``:b``). For the same
    reason no tenant may be called ``global``.
    """
    kind = _part(kind, "kind")
    owner = NO_TENANT if tenant is None else _part(tenant, "tenant")
    if owner == NO_TENANT and tenant is not None:
        raise _invalid_name("tenant", f"must not be {NO_TENANT!r}, which means no tenant in a content key")
    return f"{kind}::{owner}::{canonical(payload, limit=limit)}"


def content_hash(kind: str, tenant: str | None, payload: JsonValue, *, limit: int = DEFAULT_LIMIT) -> str:
    """SHA-256 of the content key in hexadecimal, for storage: it has the same length for every payload."""
    return hashlib.sha256(content_key(kind, tenant, payload, limit=limit).encode()).hexdigest()


def _part(name: str, what: str) -> str:
    name = check_name(name, what)
    if "::" in name or name.endswith(":"):
        raise _invalid_name(what, "must neither contain '::' nor end in ':' to be part of a content key")
    return name


def _invalid_name(what: str, why: str) -> InvalidSetting:
    return InvalidSetting(f"the {what} {why}", code="invalid_name")


class PagePosition(NamedTuple):
    """The position after a page: tenant and name of its last item."""

    tenant: str
    name: str

    def cursor(self, scope: str) -> str:
        """The position as text: the name alone for one tenant, both for a list over all tenants."""
        return json.dumps([*self]) if scope == EVERY_TENANT else self.name

    @classmethod
    def read(cls, text: str | None, scope: str) -> PagePosition | None:
        if text is None:
            return None
        try:
            parts = decode(text) if scope == EVERY_TENANT else [scope, text]
        except InvalidPayload:
            raise malformed_cursor() from None
        match parts:
            case [str(tenant), str(name)] if "\0" not in tenant + name:
                return cls(tenant, name)
        raise malformed_cursor()


def page_size(limit: object) -> int:
    """The limit of a page; ``InvalidInput`` if it is not a whole number."""
    return check_whole(limit, "limit")


def check_whole(value: object, what: str) -> int:
    """A whole number; ``InvalidInput`` for anything else."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise InvalidInput(f"{what} must be a whole number, not {type(value).__name__}", code="invalid_input")
    return value


class Paging(TypedDict, total=False):
    """Which part of a list to return: the items after a position, up to a limit. By default all of them."""

    after: PagePosition | None
    limit: int | None


def malformed_cursor() -> InvalidInput:
    return InvalidInput(
        "malformed cursor", code="invalid_cursor", fix="Pass the cursor that the previous page returned."
    )
