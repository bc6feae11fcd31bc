"""Responses: JSON becomes the records of the local app, and problem documents become its errors.

Unknown fields are ignored, and a field with a default may be missing: client and service need not have the same
version. Any other mismatch of a value and its type is an error.

A problem document becomes the exception that the same call raises locally, with the same code. Anything else (the page
of a proxy, half a response, another service's error) becomes an error that describes it. Text of the service is cut and
cleaned before it becomes part of a message, and never contains the token.
"""

from __future__ import annotations

import dataclasses
import re
import types
import typing
from collections.abc import Callable, Mapping
from datetime import date, datetime
from enum import Enum
from functools import cache
from typing import Any, Literal, TypeVar, Union

from holdfast import errors
from holdfast.engine.payload import safe_text
from holdfast.errors import (
    Conflict,
    EventsGone,
    HoldfastError,
    InvalidInput,
    NotFound,
    Refused,
    StoreError,
    StoreUnavailable,
    WaitTimeout,
)
from holdfast.remote.http_requests import Reply, document

BY_NAME: dict[str, type[HoldfastError]] = {name: getattr(errors, name) for name in errors.__all__}
BY_STATUS: dict[int, type[HoldfastError]] = {
    400: InvalidInput,
    401: Refused,
    403: Refused,
    404: NotFound,
    408: WaitTimeout,
    409: Conflict,
    410: Refused,
    413: InvalidInput,
    415: InvalidInput,
    422: InvalidInput,
    429: StoreUnavailable,
    502: StoreUnavailable,
    503: StoreUnavailable,
    504: StoreUnavailable,
}
# An unknown route does not mean that the record does not exist.
NO_ROUTE = frozenset({"no_such_route", "method_not_allowed"})
EXCERPT = 200
MAX_MESSAGE = 2_000
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f]")


def checked(reply: Reply, secret: str = "") -> Any:
    """The JSON of a successful reply, None if it has no body; otherwise raise its error."""
    if not 200 <= reply.status < 300:
        raise error_of(reply, secret)
    if reply.status == 204 or not reply.body:
        return None
    try:
        return document(reply.body)
    except (ValueError, RecursionError):
        raise unexpected(reply, secret) from None


def error_of(reply: Reply, secret: str = "") -> HoldfastError:
    problem = _problem(reply)
    if problem is None:
        if reply.status in (429, 502, 503, 504):
            return StoreUnavailable(
                f"the service is unavailable: status {reply.status}{_excerpt(reply, secret)}",
                fix="Try again later. If it lasts, check the service and the proxy in front of it.",
            )
        return unexpected(reply, secret)
    kind = BY_NAME.get(str(problem.get("error"))) or BY_STATUS.get(reply.status, StoreError)
    if problem["code"] in NO_ROUTE:
        kind = StoreError
    message = problem.get("detail") or problem.get("title") or f"status {reply.status}"
    fix = problem.get("fix")
    error = kind(
        _clean(str(message), secret),
        code=_clean(str(problem["code"]), secret)[:100],
        fix=_clean(fix, secret) if isinstance(fix, str) else None,
    )
    if isinstance(error, EventsGone):
        cursor, through = problem.get("cursor"), problem.get("through")
        error.cursor = cursor if isinstance(cursor, str) else None
        error.through = through if isinstance(through, int) else None
    return error


def is_temporary(reply: Reply) -> bool:
    """Whether an error with a retryable status is likely to pass. A refusal by a rule (a pause, a full tenant) is not
    temporary, and neither is a database that is not migrated."""
    problem = _problem(reply)
    return problem is None or problem.get("error", "StoreUnavailable") == "StoreUnavailable"


def unexpected(reply: Reply, secret: str = "") -> StoreError:
    """The error for a response that is not from a Holdfast service."""
    return StoreError(
        f"unexpected response from the service: status {reply.status}{_excerpt(reply, secret)}",
        code="unexpected_answer",
        fix="Check that this is the URL of the Holdfast service, including its path prefix.",
    )


def unreadable(what: str, why: str) -> StoreError:
    return StoreError(
        f"the service returned no {what} that this version can read: {why}",
        code="unexpected_answer",
        fix="Check that client and service have compatible versions.",
    )


def _problem(reply: Reply) -> dict[str, Any] | None:
    if "json" not in reply.headers.get("content-type", ""):
        return None
    try:
        problem = document(reply.body)
    except (ValueError, RecursionError):
        return None
    return problem if isinstance(problem, dict) and isinstance(problem.get("code"), str) else None


def _excerpt(reply: Reply, secret: str) -> str:
    text = _clean(" ".join(reply.body[: 4 * EXCERPT].decode("utf-8", "replace").split()), secret)
    kind = _clean(reply.headers.get("content-type", ""), secret)[:60]
    shown = text if len(text) <= EXCERPT else text[: EXCERPT - 1] + "…"
    return (f", {kind}" if kind else "") + (f", that begins with {shown!r}" if shown else "")


def _clean(text: str, secret: str) -> str:
    hidden = text.replace(secret, "hf_…") if secret else text
    return safe_text(_CONTROL.sub(" ", hidden), MAX_MESSAGE)


T = TypeVar("T")

Reader = Callable[[Any], Any]


class _Mismatch(Exception):
    """A value of another type. ``path`` is its position; the value is not repeated, since it may be anything."""

    def __init__(self, path: str, expected: str) -> None:
        super().__init__(f"{path.lstrip('.') or 'it'} is not {expected}")
        self.path, self.expected = path, expected


def read(kind: type[T], value: Any) -> T:
    """The value as a ``kind``: a record, or a type composed of plain types."""
    try:
        result: T = _reader(kind)(value)  # type: ignore[arg-type]  # every type can be hashed
    except _Mismatch as mismatch:
        raise unreadable(getattr(kind, "__name__", str(kind)), str(mismatch)) from None
    return result


def read_page(kind: type[T], response: Any) -> tuple[list[T], str | None]:
    """The items of a page, and the cursor of the next one."""
    if not isinstance(response, dict) or not isinstance(response.get("next"), (str, type(None))):
        raise unreadable("page", "it has no items and no next")
    items = read(list[kind], response.get("items"))  # type: ignore[valid-type]
    return items, response.get("next")


@cache
def _reader(kind: Any) -> Reader:
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any or kind is object:
        return lambda value: value
    if origin in (Union, types.UnionType):
        return _union([_reader(each) for each in args], " or ".join(_type_name(each) for each in args))
    if origin is Literal:
        return _literal(args)
    if origin is tuple and args[-1] is not Ellipsis:
        return _tuple([_reader(each) for each in args])
    if origin in (list, tuple, frozenset):
        return _collection(origin, _reader(args[0]))
    if origin in (dict, Mapping):
        return _mapping(_reader(args[1]))
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        return _record(kind)
    return _plain(kind)


def _plain(kind: Any) -> Reader:
    if kind is datetime:
        return _parser(_parse_time, "a time")
    if kind is date:
        return _parser(date.fromisoformat, "a day")
    if isinstance(kind, type) and issubclass(kind, Enum):
        return _parser(kind, f"one of {kind.__name__}")
    if kind is float:
        return _instance((int, float), "a number", float)
    names = {str: "text", int: "a whole number", bool: "true or false", type(None): "null", dict: "an object"}
    return _instance((kind,), names.get(kind, "of a known type"))


def _instance(kinds: tuple[type, ...], expected: str, make: Reader | None = None) -> Reader:
    def convert(value: Any) -> Any:
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            raise _Mismatch("", expected)
        return value if make is None else make(value)

    return convert


def _parser(make: Callable[[str], Any], expected: str) -> Reader:
    def convert(value: Any) -> Any:
        try:
            if isinstance(value, str):
                return make(value)
        except ValueError:
            pass
        raise _Mismatch("", expected)

    return convert


def _parse_time(text: str) -> datetime:
    at = datetime.fromisoformat(text)
    if at.tzinfo is None:
        raise ValueError("no time zone")
    return at


def _union(readers: list[Reader], expected: str) -> Reader:
    def convert(value: Any) -> Any:
        for each in readers:
            try:
                return each(value)
            except _Mismatch as mismatch:
                if mismatch.path:  # the type matched, and the error is inside
                    raise
        raise _Mismatch("", expected)

    return convert


def _literal(allowed: tuple[Any, ...]) -> Reader:
    def convert(value: Any) -> Any:
        # A value of a newer service is passed on to the caller.
        if value in allowed or isinstance(value, str):
            return value
        raise _Mismatch("", "one of the known values")

    return convert


def _collection(container: Any, reader: Reader) -> Reader:
    def convert(value: Any) -> Any:
        if not isinstance(value, list):
            raise _Mismatch("", "a list")
        return container(_nested(reader, each, f"[{n}]") for n, each in enumerate(value))

    return convert


def _tuple(readers: list[Reader]) -> Reader:
    def convert(value: Any) -> Any:
        if not isinstance(value, list) or len(value) != len(readers):
            raise _Mismatch("", f"a list of {len(readers)}")
        return tuple(
            _nested(reader, each, f"[{n}]") for n, (reader, each) in enumerate(zip(readers, value, strict=True))
        )

    return convert


def _mapping(reader: Reader) -> Reader:
    def convert(value: Any) -> Any:
        if not isinstance(value, dict):
            raise _Mismatch("", "an object")
        return {name: _nested(reader, each, f".{name}") for name, each in value.items()}

    return convert


def _record(kind: type) -> Reader:
    hints = typing.get_type_hints(kind)
    fields = [(each.name, _reader(hints[each.name]), _optional(each)) for each in dataclasses.fields(kind) if each.init]

    def convert(value: Any) -> Any:
        if not isinstance(value, dict):
            raise _Mismatch("", f"a {kind.__name__}")
        values = {}
        for name, reader, optional in fields:
            if name in value:
                values[name] = _nested(reader, value[name], f".{name}")
            elif not optional:
                raise _Mismatch(f".{name}", "there")
        return kind(**values)

    return convert


def _optional(field: dataclasses.Field[Any]) -> bool:
    return field.default is not dataclasses.MISSING or field.default_factory is not dataclasses.MISSING


def _nested(reader: Reader, value: Any, step: str) -> Any:
    try:
        return reader(value)
    except _Mismatch as mismatch:
        raise _Mismatch(step + mismatch.path, mismatch.expected) from None


def _type_name(kind: Any) -> str:
    return "null" if kind is type(None) else getattr(kind, "__name__", str(kind))
