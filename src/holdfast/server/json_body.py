"""Parse JSON request bodies at a bounded cost; ``JsonRoute``, the route class that does so.

The JSON parser runs in C and holds the GIL from the first byte to the last, on any thread. So the shape of a body is
checked first, on the bytes and in pieces: the number of keys and values, the depth, and numbers that take quadratic
time to convert. Large bodies are then parsed in one separate thread, so that the event loop can serve other requests.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Coroutine, Iterator
from contextvars import copy_context
from functools import partial
from itertools import accumulate
from typing import Any, Final, TypeVar

from fastapi import APIRouter, Request
from fastapi.routing import APIRoute
from starlette.responses import Response

from holdfast.engine.payload import MAX_DEPTH, MAX_DIGITS
from holdfast.errors import InvalidInput, InvalidPayload
from holdfast.stores.locks import ForkSafeExecutor

T = TypeVar("T")

MAX_KEYS: Final = 50_000
MAX_VALUES: Final = 100_000
MAX_KEYS_OPEN: Final = 1_000
"""On paths that need no credentials."""
MAX_NESTING: Final = MAX_DEPTH + 20
"""A payload is a few levels below the body that contains it, and has its own check with a better message."""
SMALL_BODY: Final = 64 * 1024
"""Largest body, in bytes, that is parsed on the event loop: one or two milliseconds."""
CHUNK: Final = 256 * 1024

_STRUCTURE: Final = b'"{}[],:'
_OTHER: Final = bytes(set(range(256)) - set(_STRUCTURE))
_STRING: Final = re.compile(rb'"[^"]*"')
_STEP: Final = [1 if byte in b"[{" else -1 for byte in range(256)]
_DIGITS: Final = bytes(48 if 48 <= byte <= 57 else 32 for byte in range(256))
_LONG: Final = b"0" * (MAX_DIGITS + 1)

_large_bodies = ForkSafeExecutor(1, "holdfast-bodies")


def parse(body: bytes, most_keys: int = MAX_KEYS) -> Any:
    """The value of a JSON body. Raises ``ValueError`` if it is not JSON."""
    check_shape(body, most_keys)
    text = body.decode()  # only UTF-8, which the check has assumed
    try:
        return json.loads(text, parse_int=_short_int) if _has_long_numbers(body) else json.loads(text)
    except RecursionError:  # pragma: no cover  # the limit depends on the depth of the caller's stack
        raise _too_deep() from None


async def run_off_loop(body: bytes, work: Callable[[], T]) -> T:
    """Run ``work``, whose time grows with the size of the body: directly if the body is small, else in the thread for
    large bodies."""
    if len(body) <= SMALL_BODY:
        return work()
    # The tenant and the actor are bound to the context.
    return await asyncio.get_running_loop().run_in_executor(_large_bodies, copy_context().run, work)


def check_shape(body: bytes, most_keys: int = MAX_KEYS) -> None:
    """Refuse a body with too many keys or values, or nested too deep."""
    # First an upper bound that also counts characters inside of strings: nearly every body passes it.
    opened, keys, values = body.count(b"{") + body.count(b"["), body.count(b":"), body.count(b",")
    if opened <= MAX_NESTING and keys <= most_keys and values <= MAX_VALUES:
        return
    depth = keys = values = 0
    for outline in _outlines(body):
        brackets = outline.translate(None, b",:")
        keys += outline.count(b":")
        values += outline.count(b",") + len(brackets) // 2
        levels = list(accumulate(map(_STEP.__getitem__, brackets), initial=depth))
        if max(levels) > MAX_NESTING:
            raise _too_deep()
        if keys > most_keys:
            raise _too_complex(f"has more than {most_keys:,} keys")
        if values > MAX_VALUES:
            raise _too_complex(f"has more than {MAX_VALUES:,} values")
        depth = levels[-1]


def _outlines(body: bytes) -> Iterator[bytes]:
    """The brackets, commas and colons outside of strings, piece by piece: no single call holds the GIL for long."""
    begin, inside = 0, False
    while begin < len(body):
        end = begin + CHUNK
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
    """Refuse integers that take quadratic time, for parsers that cannot."""
    if _has_long_numbers(body):
        json.loads(body.decode(), parse_int=_short_int)


def _short_int(digits: str) -> int:
    if len(digits) > MAX_DIGITS:
        raise InvalidPayload(
            f"The request body has an integer of more than {MAX_DIGITS:,} digits.", code="payload_bad_number"
        )
    return int(digits)


def _too_deep() -> InvalidPayload:
    return InvalidPayload(
        f"The request body is nested more than {MAX_NESTING} deep.", code="payload_too_deep", fix="Flatten it."
    )


def _too_complex(why: str) -> InvalidInput:
    return InvalidInput(f"The request body {why}.", code="body_too_complex", fix="Split it into several requests.")


class _Parsed(Request):
    """A request whose body has been read and parsed already."""

    outcome: Callable[[], Any]

    async def json(self) -> Any:
        return self.outcome()


class JsonRoute(APIRoute):
    """A route that checks the caller's scope before it reads the body, which FastAPI does in the other order, and that
    parses the body with limits."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()
        if self.body_field is None:
            return handle
        checks = [each.call for each in self.dependant.dependencies if getattr(each.call, "first", False)]
        most_keys = MAX_KEYS if any(hasattr(check, "scope") for check in checks) else MAX_KEYS_OPEN

        async def checked(request: Request) -> Response:
            for check in checks:
                await check(request)  # type: ignore[misc]
            parsed = _Parsed(request.scope, request.receive)
            body = await parsed.body()
            try:
                value = await run_off_loop(body, partial(parse, body, most_keys)) if body else None
                parsed.outcome = lambda: value
            except ValueError as error:
                failure = error
                parsed.outcome = lambda: _raise(failure)
            return await handle(parsed)

        return checked


def _raise(error: Exception) -> Any:
    raise error


Router = partial(APIRouter, route_class=JsonRoute)
