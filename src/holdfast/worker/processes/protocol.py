"""The protocol between a worker and its child: JSON in frames with a magic number and a length, and records as JSON.

Only text is sent, in both directions: a payload is data to the worker and to the child, never code.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import socket
import struct
from datetime import datetime
from typing import Any, TypeVar, get_args, get_type_hints

from holdfast.engine.outcome import Outcome, Settled
from holdfast.engine.retry import Backoff

R = TypeVar("R")
Message = dict[str, Any]

# A handler may write to a file descriptor that is not its own, such as the socket. Without the mark its bytes would be
# read as the length of a frame, and the worker would wait for the rest.
MARK = b"\x00hf\xff"
_HEADER = struct.Struct(">4sI")
_TIMES = (datetime, datetime | None)
_OUTCOMES: dict[str, type[Any]] = {kind.__name__: kind for kind in (*get_args(Outcome), Settled)}


class Garbled(ValueError):
    """The received bytes are not a frame."""


def frame(message: Message) -> bytes:
    # ASCII, so that text with lone surrogates can be encoded too.
    body = json.dumps(message).encode("ascii")
    return _HEADER.pack(MARK, len(body)) + body


def _size(header: bytes) -> int:
    mark, size = _HEADER.unpack(header)
    if mark != MARK:
        raise Garbled(f"a frame does not begin with {mark!r}")
    return int(size)


async def receive(reader: asyncio.StreamReader) -> Message:
    """The next frame; ``IncompleteReadError`` or ``ConnectionError`` if the connection has ended."""
    size = _size(await reader.readexactly(_HEADER.size))
    message: Message = json.loads(await reader.readexactly(size))
    return message


def read(link: socket.socket) -> Message | None:
    """The next frame, in the child; None if the worker is dead."""
    header = _exactly(link, _HEADER.size)
    body = None if header is None else _exactly(link, _size(header))
    if body is None:
        return None
    message: Message = json.loads(body)
    return message


def _exactly(link: socket.socket, size: int) -> bytes | None:
    parts = bytearray()
    while len(parts) < size:
        try:
            part = link.recv(min(size - len(parts), 65_536))
        except OSError:
            return None
        if not part:
            return None
        parts += part
    return bytes(parts)


def record_to_json(record: Any) -> Message:
    """A dataclass of text, numbers, JSON and times."""
    return {field.name: _plain(getattr(record, field.name)) for field in dataclasses.fields(record)}


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat()
    return value.to_json() if isinstance(value, Backoff) else value


def record_from_json(kind: type[R], values: Message) -> R:
    hints = get_type_hints(kind)
    arguments = {}
    for name, value in values.items():
        if value is not None and hints[name] in _TIMES:
            value = datetime.fromisoformat(value)
        elif value is not None and hints[name] == (Backoff | None):
            value = Backoff.from_json(value)
        elif isinstance(value, list) and hints[name] == tuple[str, ...]:
            value = tuple(value)
        arguments[name] = value
    return kind(**arguments)


def outcome_to_json(outcome: Outcome | Settled) -> Message:
    return {"ending": type(outcome).__name__, "values": record_to_json(outcome)}


def outcome_from_json(message: Message) -> Outcome | Settled:
    outcome: Outcome | Settled = record_from_json(_OUTCOMES[message["ending"]], message["values"])
    return outcome
