"""Values between Python and a database: one small codec a store, one decoder a record, shared by all reads."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar, Protocol, TypeVar, get_type_hints

from holdfast.domain.states import State

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)

R = TypeVar("R")


class Codec(Protocol):
    """How one store hands over what is not plain text or a number."""

    ids_are_text: bool
    """They need no converting."""

    def time(self, value: Any) -> datetime: ...
    def moment(self, value: datetime) -> Any:
        """The other way."""
        ...

    def json(self, value: Any) -> Any: ...
    def id(self, value: Any) -> str: ...
    def tags(self, value: Any) -> tuple[str, ...]: ...


def micros(moment: datetime) -> int:
    """An aware datetime as microseconds since 1970."""
    return (moment - EPOCH) // MICROSECOND


def in_micros(seconds: float) -> int:
    """A span of time in whole microseconds, rounded as PostgreSQL rounds one."""
    return round(seconds * 1_000_000)


def from_micros(value: int) -> datetime:
    return EPOCH + timedelta(microseconds=value)


class Record:
    """Builds a dataclass from a row whose columns are its fields, in their order.

    The decoder of each column follows from the field: its name where the name says it
    (``*_id``, ``*_at``, ``meta``), its type otherwise.
    """

    ids: ClassVar[frozenset[str]] = frozenset(
        {
            *("id", "job_id", "gate_id", "parent_id", "workflow_id", "schedule_id", "lease", "retry_of", "cause_id"),
            *("subscription_id", "sample_job", "new_id", "place", "endpoint_id"),
        }
    )
    documents: ClassVar[frozenset[str]] = frozenset(
        {
            *("payload", "options", "backoff", "meta", "value", "error", "data", "form", "match", "job_options"),
            *("refusals", "changed", "headers"),
        }
    )
    texts: ClassVar[frozenset[str]] = frozenset({"wanted"})  # JSON that both stores keep as text, to compare it as text
    lists: ClassVar[frozenset[str]] = frozenset(
        {
            *("tags", "approvers", "escalate_to", "uses", "forbidden", "kinds", "queues", "roles", "scopes"),
            *("hosts", "secrets", "wants"),
        }
    )

    _made: ClassVar[dict[object, Callable[[Sequence[Any]], Any]]] = {}

    @classmethod
    def columns(cls, record: type[Any], prefix: str = "", skip: Sequence[str] = ()) -> str:
        names = [field.name for field in dataclasses.fields(record) if field.name not in skip]
        return ", ".join(prefix + name for name in names)

    @classmethod
    def decoder(
        cls, record: type[R], codec: Codec, *, raw: Sequence[str] = (), skip: Sequence[str] = ()
    ) -> Callable[[Sequence[Any]], R]:
        """Made once: to work out the types of a record's fields takes as long as to read many rows of them."""
        key = (record, codec, tuple(raw), tuple(skip))
        found = cls._made.get(key)
        if found is None:
            found = cls._made[key] = cls._make(record, codec, raw, skip)
        return found

    @classmethod
    def _make(
        cls, record: type[R], codec: Codec, raw: Sequence[str], skip: Sequence[str]
    ) -> Callable[[Sequence[Any]], R]:
        hints = get_type_hints(record)
        names = [f.name for f in dataclasses.fields(record) if f.name not in skip]  # type: ignore[arg-type]
        wanted: list[tuple[int, Callable[[Any], Any]]] = []
        for index, name in enumerate(names):
            if name in raw:
                continue
            if name in cls.ids:
                if not codec.ids_are_text:
                    wanted.append((index, codec.id))
            elif name in cls.lists:
                wanted.append((index, codec.tags))
            elif name in cls.documents:
                wanted.append((index, codec.json))
            elif name in cls.texts:
                wanted.append((index, json.loads))
            elif hints[name] in (State, State | None):
                wanted.append((index, State))
            elif name.endswith("_at") or name in ("at", "since", "until", "process_after", "now"):
                wanted.append((index, codec.time))
            elif hints[name] in (bool, bool | None):
                wanted.append((index, bool))

        meta = names.index("meta") if "meta" in names else None

        def decode(row: Sequence[Any]) -> R:
            values = list(row)
            for index, convert in wanted:
                if values[index] is not None:
                    values[index] = convert(values[index])
            if meta is not None and values[meta] is None:
                values[meta] = {}
            return record(*values)

        return decode
