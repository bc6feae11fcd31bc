"""JSON to records; problem documents to errors.

JSON into the records that the local app answers with, so that code may move between the two.

Fields that this release does not know are passed over, and one that has a default may be missing: client and service
need not be of the same release. Anything else that does not fit is refused; what is read is what its type says.

Answers judged: a problem document becomes the exception that the same call raises locally, with the same code.

Whatever else may come (pages of a proxy, half an answer, another service's errors) becomes an error that says so. What
the service says is cut and cleaned before it is put into a message, and never holds the token.
"""

from __future__ import annotations

import dataclasses
import re
import types
import typing
from collections.abc import Callable
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
# That there is no such route says nothing of what was looked for there.
NO_ROUTE = frozenset({"no_such_route", "method_not_allowed"})
SHOWN = 200
LONGEST_MESSAGE = 2_000
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f]")


def checked(reply: Reply, secret: str = "") -> Any:
    """The document of a good answer, None where there is none; otherwise the error that it tells of."""
    if not 200 <= reply.status < 300:
        raise error_of(reply, secret)
    if reply.status == 204 or not reply.body:
        return None
    try:
        return document(reply.body)
    except (ValueError, RecursionError):
        raise strange(reply, secret) from None


def error_of(reply: Reply, secret: str = "") -> HoldfastError:
    problem = _problem(reply)
    if problem is None:
        if reply.status in (429, 502, 503, 504):
            return StoreUnavailable(f"the service is unavailable: status {reply.status}{_beginning(reply, secret)}")
        return strange(reply, secret)
    kind = BY_NAME.get(str(problem.get("error"))) or BY_STATUS.get(reply.status, StoreError)
    if problem["code"] in NO_ROUTE:
        kind = StoreError
    said = problem.get("detail") or problem.get("title") or f"status {reply.status}"
    fix = problem.get("fix")
    error = kind(
        _clean(str(said), secret),
        code=_clean(str(problem["code"]), secret)[:100],
        fix=_clean(fix, secret) if isinstance(fix, str) else None,
    )
    if isinstance(error, EventsGone):
        cursor, through = problem.get("cursor"), problem.get("through")
        error.cursor = cursor if isinstance(cursor, str) else None
        error.through = through if isinstance(through, int) else None
    return error


def may_pass(reply: Reply) -> bool:
    """Of what says that it is busy: whether it is likely to be better in a moment. A rule that said no (what is paused,
    a tenant that has its fill) is an answer, as it is locally; so is a database that nobody has migrated."""
    problem = _problem(reply)
    return problem is None or problem.get("error", "StoreUnavailable") == "StoreUnavailable"


def strange(reply: Reply, secret: str = "") -> StoreError:
    """Somebody answered, and not in our language."""
    return StoreError(
        f"unexpected response from the service: status {reply.status}{_beginning(reply, secret)}",
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
        found = document(reply.body)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) and isinstance(found.get("code"), str) else None


def _beginning(reply: Reply, secret: str) -> str:
    text = _clean(" ".join(reply.body[: 4 * SHOWN].decode("utf-8", "replace").split()), secret)
    kind = _clean(reply.headers.get("content-type", ""), secret)[:60]
    shown = text if len(text) <= SHOWN else text[: SHOWN - 1] + "…"
    return (f", {kind}" if kind else "") + (f", that begins with {shown!r}" if shown else "")


def _clean(text: str, secret: str) -> str:
    hidden = text.replace(secret, "hf_…") if secret else text
    return safe_text(_CONTROL.sub(" ", hidden), LONGEST_MESSAGE)


T = TypeVar("T")

Reader = Callable[[Any], Any]


class _Unfit(Exception):
    """``where`` is the path to what does not fit; its value is not repeated, since it may be anything."""

    def __init__(self, where: str, wanted: str) -> None:
        super().__init__(f"{where.lstrip('.') or 'it'} is not {wanted}")
        self.where, self.wanted = where, wanted


def read(kind: type[T], value: Any) -> T:
    """The value as a ``kind``, which is a record or any other type made of plain ones."""
    try:
        found: T = _reader(kind)(value)  # type: ignore[arg-type]  # every type can be hashed
    except _Unfit as unfit:
        raise unreadable(getattr(kind, "__name__", str(kind)), str(unfit)) from None
    return found


def read_all(kind: type[T], values: Any) -> list[T]:
    return read(list[kind], values)  # type: ignore[valid-type]


def read_page(kind: type[T], answer: Any) -> tuple[list[T], str | None]:
    """The items of a page, and what to ask for the next one with."""
    if not isinstance(answer, dict) or not isinstance(answer.get("next"), (str, type(None))):
        raise unreadable("page", "it has no items and no next")
    return read_all(kind, answer.get("items")), answer.get("next")


@cache
def _reader(kind: Any) -> Reader:
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any or kind is object:
        return lambda value: value
    if origin in (Union, types.UnionType):
        return _either([_reader(each) for each in args], " or ".join(_named(each) for each in args))
    if origin is Literal:
        return _one_of(args)
    if origin is tuple and args[-1] is not Ellipsis:
        return _fixed([_reader(each) for each in args])
    if origin in (list, tuple, frozenset):
        return _many(origin, _reader(args[0]))
    if origin is dict:
        return _mapping(_reader(args[1]))
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        return _record(kind)
    return _plain(kind)


def _plain(kind: Any) -> Reader:
    if kind is datetime:
        return _parsed(_moment, "a time")
    if kind is date:
        return _parsed(date.fromisoformat, "a day")
    if isinstance(kind, type) and issubclass(kind, Enum):
        return _parsed(kind, f"one of {kind.__name__}")
    if kind is float:
        return _is((int, float), "a number", float)
    names = {str: "text", int: "a whole number", bool: "true or false", type(None): "null", dict: "an object"}
    return _is((kind,), names.get(kind, "of a known type"))


def _is(kinds: tuple[type, ...], wanted: str, make: Reader | None = None) -> Reader:
    def reads(value: Any) -> Any:
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            raise _Unfit("", wanted)
        return value if make is None else make(value)

    return reads


def _parsed(make: Callable[[str], Any], wanted: str) -> Reader:
    def reads(value: Any) -> Any:
        try:
            if isinstance(value, str):
                return make(value)
        except ValueError:
            pass
        raise _Unfit("", wanted)

    return reads


def _moment(text: str) -> datetime:
    found = datetime.fromisoformat(text)
    if found.tzinfo is None:
        raise ValueError("no zone")
    return found


def _either(readers: list[Reader], wanted: str) -> Reader:
    def reads(value: Any) -> Any:
        for each in readers:
            try:
                return each(value)
            except _Unfit as unfit:
                if unfit.where:  # it was the right kind of thing, with something wrong inside
                    raise
        raise _Unfit("", wanted)

    return reads


def _one_of(allowed: tuple[Any, ...]) -> Reader:
    def reads(value: Any) -> Any:
        # A word that a newer service has and we do not is passed on: what to make of it is the caller's to say.
        if value in allowed or isinstance(value, str):
            return value
        raise _Unfit("", "one of the known words")

    return reads


def _many(box: Any, reader: Reader) -> Reader:
    def reads(value: Any) -> Any:
        if not isinstance(value, list):
            raise _Unfit("", "a list")
        return box(_inside(reader, each, f"[{n}]") for n, each in enumerate(value))

    return reads


def _fixed(readers: list[Reader]) -> Reader:
    def reads(value: Any) -> Any:
        if not isinstance(value, list) or len(value) != len(readers):
            raise _Unfit("", f"a list of {len(readers)}")
        return tuple(
            _inside(reader, each, f"[{n}]") for n, (reader, each) in enumerate(zip(readers, value, strict=True))
        )

    return reads


def _mapping(reader: Reader) -> Reader:
    def reads(value: Any) -> Any:
        if not isinstance(value, dict):
            raise _Unfit("", "an object")
        return {name: _inside(reader, each, f".{name}") for name, each in value.items()}

    return reads


def _record(kind: type) -> Reader:
    hints = typing.get_type_hints(kind)
    fields = [(each.name, _reader(hints[each.name]), _optional(each)) for each in dataclasses.fields(kind) if each.init]

    def reads(value: Any) -> Any:
        if not isinstance(value, dict):
            raise _Unfit("", f"a {kind.__name__}")
        found = {}
        for name, reader, optional in fields:
            if name in value:
                found[name] = _inside(reader, value[name], f".{name}")
            elif not optional:
                raise _Unfit(f".{name}", "there")
        return kind(**found)

    return reads


def _optional(field: dataclasses.Field[Any]) -> bool:
    return field.default is not dataclasses.MISSING or field.default_factory is not dataclasses.MISSING


def _inside(reader: Reader, value: Any, step: str) -> Any:
    try:
        return reader(value)
    except _Unfit as unfit:
        raise _Unfit(step + unfit.where, unfit.wanted) from None


def _named(kind: Any) -> str:
    return "null" if kind is type(None) else getattr(kind, "__name__", str(kind))
