"""Conversion of values between Python and a database: a codec per store, a decoder per record.

A decoder never raises: whatever one row contains, the other rows of its page, claim or maintenance task must be read.
A value that cannot be read is replaced: a time by the first or last possible one, a document by ``Unreadable``, a list
by an empty one. A record with a field ``unreadable`` names these columns there, with the reason.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, ClassVar, Protocol, TypeVar, get_args, get_origin, get_type_hints

from holdfast.engine.payload import Unreadable
from holdfast.engine.states import State, unknown_state
from holdfast.engine.times import EPOCH, FIRST, MICROSECOND, clamped, instant
from holdfast.errors import InvalidInput

R = TypeVar("R")

NOTED = "unreadable"
"""The field of a record that names the columns of its row that cannot be read. It is not a column itself."""


class Codec(Protocol):
    """How one store represents values other than text and numbers."""

    ids_are_text: bool
    """Whether ids need no conversion."""

    def time(self, value: Any) -> datetime: ...
    def moment(self, value: datetime) -> Any:
        """The inverse of ``time``."""
        ...

    def json(self, value: Any) -> Any: ...
    def id(self, value: Any) -> str: ...
    def tags(self, value: Any) -> tuple[str, ...]: ...


def micros(moment: datetime) -> int:
    """An aware datetime as microseconds since 1970. A time that could not be read again is refused."""
    return (instant(moment, "a time") - EPOCH) // MICROSECOND


def in_micros(seconds: float) -> int:
    """A span of time in whole microseconds, rounded as PostgreSQL rounds one."""
    return round(seconds * 1_000_000)


def from_micros(value: int) -> datetime:
    return clamped(value)


def texts(values: Any) -> tuple[str, ...]:
    """A list of texts; ``ValueError`` for anything else."""
    if not isinstance(values, list) or not all(type(each) is str for each in values):
        raise ValueError("not a list of texts")
    return tuple(values)


def not_storable() -> InvalidInput:
    """The error for a text that UTF-8 cannot encode."""
    return InvalidInput("a text has a lone surrogate, which cannot be stored", code="invalid_input")


def reason(error: Exception) -> str:
    """A short reason why a value could not be read."""
    return str(error)[:200] or type(error).__name__


@dataclass(frozen=True, slots=True)
class _Column:
    index: int
    name: str
    convert: Callable[[Any], Any]
    replace: Callable[[Any, str], Any]
    """Makes the replacement of a value that cannot be read, from the value and the reason."""


class Record:
    """Builds a dataclass from a row whose columns are its fields, in the same order.

    The conversion of a column follows from the name of the field (``*_id``, ``*_at``, ``meta``) or else from its type.
    """

    ids: ClassVar[frozenset[str]] = frozenset(
        {
            *(
                "id",
                "job_id",
                "approval_id",
                "parent_id",
                "workflow_id",
                "schedule_id",
                "lease",
                "retry_of",
                "cause_id",
            ),
            *("subscription_id", "sample_job", "new_id", "place", "webhook_id"),
        }
    )
    documents: ClassVar[frozenset[str]] = frozenset(
        {
            *("payload", "options", "backoff", "meta", "value", "error", "data", "form", "match", "job_options"),
            *("refusals", "changed", "headers", "schema", "requires_approval"),
        }
    )
    texts: ClassVar[frozenset[str]] = frozenset({"wanted"})  # JSON that both stores keep as text, to compare it as text
    lists: ClassVar[frozenset[str]] = frozenset(
        {
            *("tags", "approvers", "escalate_to", "uses", "forbidden", "kinds", "queues", "roles", "scopes"),
            *("hosts", "secrets", "wants", "job_ids"),
        }
    )

    _decoders: ClassVar[dict[object, Callable[[Sequence[Any]], Any]]] = {}

    @classmethod
    def columns(cls, record: type[Any], prefix: str = "", skip: Sequence[str] = ()) -> str:
        return ", ".join(prefix + name for name in cls._names(record, skip))

    @staticmethod
    def _names(record: type[Any], skip: Sequence[str]) -> list[str]:
        return [each.name for each in dataclasses.fields(record) if each.init and each.name not in (*skip, NOTED)]

    @classmethod
    def decoder(
        cls, record: type[R], codec: Codec, *, raw: Sequence[str] = (), skip: Sequence[str] = ()
    ) -> Callable[[Sequence[Any]], R]:
        """The decoder of a record. Cached: resolving the types of the fields takes as long as reading many rows."""
        key = (record, codec, tuple(raw), tuple(skip))
        decoder = cls._decoders.get(key)
        if decoder is None:
            decoder = cls._decoders[key] = cls._make(record, codec, raw, skip)
        return decoder

    @classmethod
    def _make(
        cls, record: type[R], codec: Codec, raw: Sequence[str], skip: Sequence[str]
    ) -> Callable[[Sequence[Any]], R]:
        hints = get_type_hints(record)
        names = cls._names(record, skip)
        columns = [
            column
            for index, name in enumerate(names)
            if name not in raw and (column := cls._column(index, name, hints[name], codec)) is not None
        ]
        converted = [(column.index, column.convert) for column in columns]
        required: list[tuple[int, Any]] = [
            (index, {} if name == "meta" else () if name in cls.lists else Unreadable("there is none"))
            for index, name in enumerate(names)
            if name not in raw and name in cls.documents | cls.lists and _is_required(hints[name])
        ]
        documents = [column for column in columns if column.name in cls.documents | cls.texts]
        notes = any(each.name == NOTED for each in dataclasses.fields(record))  # type: ignore[arg-type]

        def decode(row: Sequence[Any]) -> R:
            values = list(row)
            trouble: list[str] = []
            try:
                for index, convert in converted:
                    if values[index] is not None:
                        values[index] = convert(values[index])
            except Exception:
                values, trouble = one_by_one(row)
            for index, empty in required:
                if values[index] is None:
                    values[index] = empty
            if notes:
                pairs = ((column.name, values[column.index]) for column in documents)
                trouble += [f"{name}: {value.why}" for name, value in pairs if type(value) is Unreadable]
                if trouble:
                    return build({**dict(zip(names, values, strict=True)), NOTED: "; ".join(dict.fromkeys(trouble))})
            try:
                return record(*values)
            except Exception:
                return build(dict(zip(names, values, strict=True)))

        def one_by_one(row: Sequence[Any]) -> tuple[list[Any], list[str]]:
            values, trouble = list(row), []
            for column in columns:
                value = values[column.index]
                if value is not None:
                    try:
                        values[column.index] = column.convert(value)
                    except Exception as error:
                        why = reason(error)
                        values[column.index] = column.replace(value, why)
                        trouble.append(f"{column.name}: {why}")
            return values, trouble

        def build(values: dict[str, Any]) -> R:
            """Build the record, bypassing its own checks if they refuse the values."""
            try:
                return record(**values)
            except Exception:
                instance = object.__new__(record)
                for each in dataclasses.fields(record):  # type: ignore[arg-type]
                    object.__setattr__(instance, each.name, values.get(each.name, _default(each)))
                return instance

        return decode

    @classmethod
    def _column(cls, index: int, name: str, hint: Any, codec: Codec) -> _Column | None:
        """The conversion of a column; None for one that needs none."""
        if name in cls.ids:
            return None if codec.ids_are_text else _Column(index, name, codec.id, lambda value, why: repr(value))
        if name in cls.lists:
            return _Column(index, name, codec.tags, lambda value, why: ())
        if (name in cls.documents and hint is not bool) or name in cls.texts:  # agents have a mark of the same name
            read = json.loads if name in cls.texts else codec.json
            convert = _as_object(read) if _is_object(hint) else read
            return _Column(index, name, convert, lambda value, why: Unreadable(why))
        if hint in (State, State | None):
            return _Column(index, name, State, lambda value, why: unknown_state(str(value)))
        if name.endswith("_at") or name in ("at", "since", "until", "now", "scheduled_for"):
            return _Column(index, name, codec.time, lambda value, why: FIRST)
        if hint in (bool, bool | None):
            return _Column(index, name, bool, lambda value, why: False)
        return None


def _as_object(read: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Convert a document that must be an object: readers look up names in it."""

    def convert(value: Any) -> Any:
        document = read(value)
        if isinstance(document, dict):
            return document
        return Unreadable(f"a {type(document).__name__} instead of an object")

    return convert


def _is_object(hint: Any) -> bool:
    return any(get_origin(each) is dict for each in (hint, *get_args(hint)))


def _is_required(hint: Any) -> bool:
    return type(None) not in get_args(hint) and (get_origin(hint) or hint) in (dict, tuple)


def _default(each: dataclasses.Field[Any]) -> Any:
    if each.default is not dataclasses.MISSING:
        return each.default
    return None if each.default_factory is dataclasses.MISSING else each.default_factory()
