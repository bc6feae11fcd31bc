"""Requests, replies and the steps of programs, as data; functions that make requests."""

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

MAX_BODY = 8 * 1024 * 1024
"""The limit of the service."""


@dataclass(frozen=True, slots=True)
class Request:
    """``path`` is relative to the API. ``repeatable``: the request is idempotent, so it may be sent again when no
    response came. ``extra_timeout`` is the number of seconds that the service may take in addition to the timeout, and
    ``until`` a time of the monotonic clock after which the caller no longer waits or retries."""

    method: str
    path: str
    query: tuple[tuple[str, str], ...] = ()
    body: bytes | None = field(default=None, repr=False)
    headers: Mapping[str, str] = field(default_factory=dict)
    repeatable: bool = False
    extra_timeout: float = 0.0
    until: float = math.inf


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A request for the transport. ``within`` is the number of seconds for the whole response."""

    method: str
    url: str
    within: float
    query: tuple[tuple[str, str], ...] = ()
    headers: dict[str, str] = field(default_factory=dict, repr=False)
    body: bytes | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class Reply:
    """A response. Header names are lower case. The body of a stream is read separately."""

    status: int
    headers: Mapping[str, str]
    body: bytes = field(default=b"", repr=False)


class Unreachable(Exception):
    """There was no complete response: it is unknown whether the request was carried out."""


# --- steps ---


@dataclass(frozen=True, slots=True)
class Send:
    """Send a request. The result is a ``Reply``, or ``Unreachable`` as a value."""

    request: Request


@dataclass(frozen=True, slots=True)
class Open:
    """Send a request whose response is a stream, to be read with ``Read``; one at a time."""

    request: Request


@dataclass(frozen=True, slots=True)
class Read:
    """Read the next bytes of the stream: empty at the end, or ``Unreachable``."""


@dataclass(frozen=True, slots=True)
class Pause:
    seconds: float


Step = Send | Open | Read | Pause
Steps = Generator[Step, Any, T]


# --- making requests ---


def get(path: str, *, extra_timeout: float = 0.0, **query: object) -> Request:
    return Request("GET", path, query_pairs(query), repeatable=True, extra_timeout=extra_timeout)


def post(
    path: str, body: Any = None, *, key: str | None = None, method: str = "POST", repeatable: bool = False
) -> Request:
    """With a ``key`` it is repeatable: the service returns the first response again."""
    headers = {} if key is None else {"Idempotency-Key": key}
    content = packed({} if body is None else body)
    return Request(method, path, body=content, headers=headers, repeatable=repeatable or key is not None)


def put(path: str, body: Any = None) -> Request:
    return post(path, body, method="PUT", repeatable=True)


def patch(path: str, body: Any) -> Request:
    return post(path, body, method="PATCH")


def delete(path: str, **query: object) -> Request:
    return Request("DELETE", path, query_pairs(query))


def segment(value: str) -> str:
    """A name or an id as one segment of a path, escaped."""
    return quote(str(value), safe="")


def without_none(**values: Any) -> dict[str, Any]:
    """The values that are not None, with times as text and durations as seconds."""
    return {name: json_value(value) for name, value in values.items() if value is not None}


def query_pairs(query: Mapping[str, object]) -> tuple[tuple[str, str], ...]:
    """The query as pairs; a list becomes one pair per item, and None is left out."""
    lists = [(name, value if isinstance(value, (list, tuple)) else (value,)) for name, value in query.items()]
    return tuple((name, _text(value)) for name, values in lists for value in values if value is not None)


def packed(body: Any) -> bytes:
    """The body as JSON, checked like a local payload, with the same error codes."""
    return encode(body, limit=MAX_BODY, what="request").encode()


def json_value(value: Any) -> Any:
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, (set, frozenset)):
        return sorted(value)
    return _text(value) if isinstance(value, date) else value


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, datetime):
        return value.isoformat().replace("+00:00", "Z")
    return value.isoformat() if isinstance(value, date) else str(value)


def document(body: bytes) -> Any:
    """The JSON of a response; ``ValueError`` if it is not JSON."""
    return json.loads(body)
