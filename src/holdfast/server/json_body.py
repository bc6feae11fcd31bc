"""From the bytes of a JSON body to a value, at a bounded cost, and the route class that does it.

From the bytes of a request body to a value, at a bounded cost.

The reader of JSON runs in C and holds the interpreter from the first byte to the last, on whichever thread. So the
shape of a body is checked first, on the bytes and in pieces: how many keys and values it has, how deep it is nested,
whether it has numbers that take quadratic time. What is large is then read on a thread of its own, one body at a time,
so that other requests are answered meanwhile.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from functools import partial
from itertools import accumulate
from typing import Any, Final, TypeVar

from fastapi import APIRouter, Request
from fastapi.routing import APIRoute
from starlette.responses import Response

from holdfast.engine.payload import MAX_DEPTH, MAX_DIGITS
from holdfast.errors import InvalidInput, InvalidPayload

T = TypeVar("T")

MOST_KEYS: Final = 50_000
MOST_VALUES: Final = 100_000
MOST_KEYS_OPEN: Final = 1_000
"""On paths that need no credentials."""
DEEPEST: Final = MAX_DEPTH + 20
"""A payload is a few levels below the body that holds it, and is told by itself that it is too deep."""
AT_ONCE: Final = 64 * 1024
"""Bytes of a body that is read on the event loop: a millisecond or two."""
PIECE: Final = 256 * 1024

_STRUCTURE: Final = b'"{}[],:'
_OTHER: Final = bytes(set(range(256)) - set(_STRUCTURE))
_STRING: Final = re.compile(rb'"[^"]*"')
_STEP: Final = [1 if byte in b"[{" else -1 for byte in range(256)]
_DIGITS: Final = bytes(48 if 48 <= byte <= 57 else 32 for byte in range(256))
_LONG: Final = b"0" * (MAX_DIGITS + 1)

_aside = ThreadPoolExecutor(1, thread_name_prefix="holdfast-bodies")


def parse(body: bytes, most_keys: int = MOST_KEYS) -> Any:
    """The value of a JSON body. Raises ``ValueError`` for what is no JSON."""
    check_shape(body, most_keys)
    text = body.decode()  # UTF-8 and nothing else: the check has read the bytes as such
    try:
        return json.loads(text, parse_int=_short) if _has_long_numbers(body) else json.loads(text)
    except RecursionError:  # pragma: no cover  # how deep a reader gets depends on the program around it
        raise _too_deep() from None


async def at_leisure(body: bytes, work: Callable[[], T]) -> T:
    """Do what takes as long as the body is large: at once if that is short, else on the thread for large bodies."""
    if len(body) <= AT_ONCE:
        return work()
    # The tenant and the actor are bound to the context.
    return await asyncio.get_running_loop().run_in_executor(_aside, copy_context().run, work)


def check_shape(body: bytes, most_keys: int = MOST_KEYS) -> None:
    """Refuse a body with too many keys or values, or nested too deep."""
    # An upper bound first, with what is in strings: nearly every body is done here.
    opened, keys, values = body.count(b"{") + body.count(b"["), body.count(b":"), body.count(b",")
    if opened <= DEEPEST and keys <= most_keys and values <= MOST_VALUES:
        return
    depth = keys = values = 0
    for outline in _outlines(body):
        brackets = outline.translate(None, b",:")
        keys += outline.count(b":")
        values += outline.count(b",") + len(brackets) // 2
        levels = list(accumulate(map(_STEP.__getitem__, brackets), initial=depth))
        if max(levels) > DEEPEST:
            raise _too_deep()
        if keys > most_keys:
            raise _too_complex(f"has more than {most_keys:,} keys")
        if values > MOST_VALUES:
            raise _too_complex(f"has more than {MOST_VALUES:,} values")
        depth = levels[-1]


def _outlines(body: bytes) -> Iterator[bytes]:
    """The brackets, commas and colons outside of strings, piece by piece: no single call holds the interpreter long."""
    begin, inside = 0, False
    while begin < len(body):
        end = begin + PIECE
        while body[end - 1 : end] == b"\\":  # an escape is never divided
            end += 1
        piece = body[begin:end].replace(b"\\\\", b"").replace(b'\\"', b"").translate(None, _OTHER)
        if inside:
            piece = b'"' + piece
        inside = piece.count(b'"') % 2 == 1
        yield _STRING.sub(b"", piece + b'"' if inside else piece)
        begin = end


def _has_long_numbers(body: bytes) -> bool:
    return len(body) > MAX_DIGITS and _LONG in body.translate(_DIGITS)


def check_numbers(body: bytes) -> None:
    """Refuse integers that take quadratic time, for readers that cannot be told to."""
    if _has_long_numbers(body):
        json.loads(body.decode(), parse_int=_short)


def _short(digits: str) -> int:
    if len(digits) > MAX_DIGITS:
        raise InvalidPayload(
            f"The request body has an integer of more than {MAX_DIGITS:,} digits.", code="payload_bad_number"
        )
    return int(digits)


def _too_deep() -> InvalidPayload:
    return InvalidPayload(
        f"The request body is nested more than {DEEPEST} deep.", code="payload_too_deep", fix="Flatten it."
    )


def _too_complex(why: str) -> InvalidInput:
    return InvalidInput(f"The request body {why}.", code="body_too_complex", fix="Split it into several requests.")


class _Parsed(Request):
    """A request whose body has been read and parsed already."""

    outcome: Callable[[], Any]

    async def json(self) -> Any:
        return self.outcome()


class JsonRoute(APIRoute):
    """A route that checks who may call it before it reads the body, which FastAPI does the other way round, and that
    parses the body with limits."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        answer = super().get_route_handler()
        if self.body_field is None:
            return answer
        checks = [each.call for each in self.dependant.dependencies if getattr(each.call, "first", False)]
        most_keys = MOST_KEYS if any(hasattr(check, "scope") for check in checks) else MOST_KEYS_OPEN

        async def checked(request: Request) -> Response:
            for check in checks:
                await check(request)  # type: ignore[misc]
            asked = _Parsed(request.scope, request.receive)
            body = await asked.body()
            try:
                value = await at_leisure(body, partial(parse, body, most_keys)) if body else None
                asked.outcome = lambda: value
            except ValueError as error:
                failed = error
                asked.outcome = lambda: _raise(failed)
            return await answer(asked)

        return checked


def _raise(error: Exception) -> Any:
    raise error


Router = partial(APIRouter, route_class=JsonRoute)
