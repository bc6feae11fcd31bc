"""Requests and steps as data; base URL, token."""

from __future__ import annotations

import json
import math
from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from typing import Any, TypeVar
from urllib.parse import quote

from holdfast.engine.payload import encode

T = TypeVar("T")

LARGEST_BODY = 8 * 1024 * 1024
"""The service takes no more."""


@dataclass(frozen=True, slots=True)
class Request:
    """``path`` is below the base URL. ``repeatable``: carried out twice it does no more than once, so that it may be
    sent again when no answer came. ``patience`` is how many seconds the service may take beyond the usual, and
    ``until`` a moment of the monotonic clock at which nobody waits for an answer any more, nor asks again."""

    method: str
    path: str
    query: tuple[tuple[str, str], ...] = ()
    body: bytes | None = field(default=None, repr=False)
    headers: Mapping[str, str] = field(default_factory=dict)
    repeatable: bool = False
    patience: float = 0.0
    until: float = math.inf


@dataclass(frozen=True, slots=True)
class Reply:
    """Names of headers are in small letters. Of a stream that was opened the body is not here yet."""

    status: int
    headers: Mapping[str, str]
    body: bytes = field(default=b"", repr=False)


class Unreachable(Exception):
    """No answer came, or not all of it: whether the request was carried out is not known."""


# --- steps ---


@dataclass(frozen=True, slots=True)
class Send:
    """Answered with a ``Reply``, or with ``Unreachable`` as a value."""

    request: Request


@dataclass(frozen=True, slots=True)
class Open:
    """The same for an answer that is read as it comes, by ``Read``; one at a time."""

    request: Request


@dataclass(frozen=True, slots=True)
class Read:
    """Answered with the next bytes, none at the end, or with ``Unreachable``."""


@dataclass(frozen=True, slots=True)
class Pause:
    seconds: float


Step = Send | Open | Read | Pause
Steps = Generator[Step, Any, T]


# --- making requests ---


def get(path: str, *, patience: float = 0.0, **query: object) -> Request:
    return Request("GET", path, asked(query), repeatable=True, patience=patience)


def post(path: str, body: Any = None, *, key: str | None = None, method: str = "POST") -> Request:
    """With a ``key`` it may be sent again: the service answers what it answered before."""
    headers = {} if key is None else {"Idempotency-Key": key}
    return Request(method, path, body=packed({} if body is None else body), headers=headers, repeatable=key is not None)


def put(path: str, body: Any = None) -> Request:
    return post(path, body, method="PUT")


def patch(path: str, body: Any) -> Request:
    return post(path, body, method="PATCH")


def delete(path: str, **query: object) -> Request:
    return Request("DELETE", path, asked(query))


def segment(value: str) -> str:
    """A name or an id as one part of a path, whatever is in it."""
    return quote(str(value), safe="")


def given(**values: Any) -> dict[str, Any]:
    """Those that were said at all, times as text and spans as seconds."""
    return {name: _simple(value) for name, value in values.items() if value is not None}


def asked(query: Mapping[str, object]) -> tuple[tuple[str, str], ...]:
    """A list is said once for each."""
    said = [(name, value if isinstance(value, (list, tuple)) else (value,)) for name, value in query.items()]
    return tuple((name, _word(each)) for name, values in said for each in values if each is not None)


def packed(body: Any) -> bytes:
    """Checked as a payload is locally: what is not JSON is refused here, with the same code."""
    return encode(body, limit=LARGEST_BODY, what="request").encode()


def _simple(value: Any) -> Any:
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, (set, frozenset)):
        return sorted(value)
    return _word(value) if isinstance(value, date) else value


def _word(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, datetime):
        return value.isoformat().replace("+00:00", "Z")
    return value.isoformat() if isinstance(value, date) else str(value)


def document(body: bytes) -> Any:
    """The JSON of an answer; a ``ValueError`` for what is none."""
    return json.loads(body)
