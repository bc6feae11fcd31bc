"""Our statements on a connection of asyncpg, which has other parameters, values and errors than psycopg.

asyncpg asks the server for the types of the parameters, and converts values with the codecs of the connection, which
the application may have replaced. So every value is sent as text and cast to the type that the server has named.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from uuid import UUID

import psycopg

from holdfast.engine.payload import decode_for_display
from holdfast.stores.postgres.codec import TYPES, Ids, Numbers
from holdfast.stores.postgres.pipeline import _PARAMETER

if TYPE_CHECKING:
    from holdfast.stores.flow import Rows, Statement

MOST_TEXTS = 2_000
_JSON = frozenset({"json", "jsonb"})


async def fetch(connection: Any, statement: Statement) -> Rows:
    """Run a statement, and return its rows with the values that psycopg would return."""
    text, names = _numbered(statement.sql)
    params: Any = statement.params
    values = [params[name] for name in names] if isinstance(params, Mapping) else list(params)
    known = _texts.get(text)
    if known is None:
        known = await _known(connection, text)
    records = await connection.fetch(known.sql, *(_as_text(value) for value in values))
    return [known.row(record) for record in records]


@dataclass(slots=True)
class _Known:
    """The text with its casts, and the positions of columns whose values are converted."""

    sql: str
    json: tuple[int, ...]

    def row(self, record: Any) -> tuple[Any, ...]:
        values = [_converted(value) for value in record.values()]
        for position in self.json:
            if isinstance(values[position], str | bytes):
                values[position] = decode_for_display(values[position])
        return tuple(values)


_texts: dict[str, _Known] = {}
"""By text, which has the schema in it."""


async def _known(connection: Any, text: str) -> _Known:
    prepared = await connection.prepare(text)
    types = [f'"{each.schema}"."{_plain(each.name)}"' for each in prepared.get_parameters()]
    sql = _cast(text, tuple(types))
    columns = [each.type.name for each in prepared.get_attributes()]
    if len(_texts) >= MOST_TEXTS:
        _texts.clear()
    _texts[text] = known = _Known(sql, tuple(n for n, name in enumerate(columns) if name in _JSON))
    return known


def _plain(name: str) -> str:
    """The name of a type in the catalog: an array's begins with an underscore."""
    return f"_{name[:-2]}" if name.endswith("[]") else name


@lru_cache(maxsize=2048)
def _numbered(sql: str) -> tuple[str, tuple[str, ...]]:
    """The text with ``$1``, ``$2``, … and the names of its parameters, or ``()`` if they are positional."""
    names: list[str] = []
    count = 0

    def write(match: Any) -> str:
        nonlocal count
        name = match[1]
        if name is not None:
            if name not in names:
                names.append(name)
            return f"${names.index(name) + 1}"
        if match[2] is None:
            return "%"
        count += 1
        return f"${count}"

    return _PARAMETER.sub(write, sql), tuple(names)


def _cast(text: str, types: Sequence[str]) -> str:
    """Each parameter as text that is cast to its type. ``$10`` before ``$1``."""
    for number in range(len(types), 0, -1):
        text = text.replace(f"${number}", f"cast(cast(\0{number} as text) as {types[number - 1]})")
    return text.replace("\0", "$")


def _as_text(value: Any) -> str | None:
    """A value as PostgreSQL writes it."""
    if value is None or type(value) is str:
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, timedelta):
        return f"{value.days} days {value.seconds} seconds {value.microseconds} microseconds"
    if type(value) in TYPES:
        return _array(_elements(value))
    if isinstance(value, bytes):
        return f"\\x{value.hex()}"
    if isinstance(value, list | tuple | set | frozenset):
        return _array(value)
    return str(value)


def _array(values: Any) -> str:
    return "{" + ",".join(_element(value) for value in values) + "}"


def _element(value: Any) -> str:
    if isinstance(value, list | tuple):
        return _array(value)
    text = _as_text(value)
    if text is None:
        return "NULL"
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _elements(value: bytes) -> list[Any]:
    """The elements of an array in the binary format of the server (codec.py)."""
    elements: list[Any] = []
    position = 20
    while position < len(value):
        (length,) = struct.unpack_from(">i", value, position)
        data = value[position + 4 : position + 4 + length]
        position += 4 + max(0, length)
        if length < 0:
            elements.append(None)
        elif isinstance(value, Ids):
            elements.append(str(UUID(bytes=data)))
        elif isinstance(value, Numbers):
            elements.append(int.from_bytes(data, "big", signed=True))
        else:
            elements.append(data.decode())
    return elements


def _converted(value: Any) -> Any:
    if isinstance(value, UUID):
        return str(value)
    if isinstance(value, list):
        return [_converted(each) for each in value]
    if isinstance(value, datetime) and value.tzinfo is None:  # infinity
        return value.replace(tzinfo=UTC)
    return value


def as_psycopg_error(error: Exception) -> psycopg.Error | None:
    """The error of psycopg that means the same as one of asyncpg; None for other errors."""
    if isinstance(error, TimeoutError | OSError):
        return psycopg.OperationalError(str(error) or "no response in time")
    if not type(error).__module__.startswith("asyncpg"):
        return None
    state = getattr(error, "sqlstate", None)
    message = str(getattr(error, "message", None) or error)
    if not isinstance(state, str) or state.startswith("08"):
        return psycopg.OperationalError(message)
    try:
        return psycopg.errors.lookup(state)(message)
    except KeyError:
        return OurError(state, message, getattr(error, "hint", None))


class OurError(psycopg.DatabaseError):
    """An error of our SQL functions, with the hint that is the fix."""

    def __init__(self, state: str, message: str, hint: str | None) -> None:
        super().__init__(message)
        self.sqlstate = state
        self._hint = hint

    @property
    def diag(self) -> Any:
        return SimpleNamespace(message_hint=self._hint)
