"""What routes answer: our own frozen records as they are, with the names that ``--json`` prints, in pages."""

from __future__ import annotations

import dataclasses
from typing import Annotated, Any, Generic, TypeVar, get_type_hints

from fastapi import Path, Query
from pydantic import BaseModel, Field, TypeAdapter, create_model

T = TypeVar("T")

PAGE, MOST = 50, 200
LARGEST = 2**31 - 1

Limit = Annotated[int, Query(ge=1, le=MOST, description="How many at most.")]
After = Annotated[
    str | None, Query(max_length=8_000, description="The next page: what `next` of the page before said.")
]
Id = Annotated[str, Path(min_length=1, max_length=100, description="A UUID.")]
Name = Annotated[str, Path(min_length=1, max_length=255)]
NamePath = Name  # its route says {name:path}: names may have a / in them


class Page(BaseModel, Generic[T]):
    """``next`` is what to give as ``after`` for the next page; null when there is none."""

    items: list[T]
    next: str | None = None


class Problem(BaseModel):
    """A refusal (RFC 9457). ``code`` is stable; ``fix`` says what to do, where that is known."""

    type: str = Field(examples=["urn:holdfast:error:not_found"])
    title: str = Field(examples=["not found"])
    status: int = Field(examples=[404])
    code: str = Field(examples=["not_found"])
    detail: str
    refused: bool = True
    reason: str
    fix: str | None = None
    error: str | None = Field(None, examples=["NotFound"], description="The class that Python raises for it.")


def with_more(record: type[Any], name: str, **more: Any) -> type[BaseModel]:
    """A model with the fields of a record and what else is told of it."""
    hints = get_type_hints(record)
    fields: dict[str, Any] = {each.name: (hints[each.name], ...) for each in dataclasses.fields(record)}
    fields |= {key: (kind, ...) for key, kind in more.items()}
    model: type[BaseModel] = create_model(name, __doc__=record.__doc__, **fields)
    return model


def and_more(record: Any, **more: Any) -> dict[str, Any]:
    """The record as such a model has it."""
    return {each.name: getattr(record, each.name) for each in dataclasses.fields(record)} | more


_anything: TypeAdapter[Any] = TypeAdapter(Any)


def as_json(value: Any) -> bytes:
    """Any of our records as JSON: times in UTC as RFC 3339, words for states."""
    return _anything.dump_json(value)


def paged(found: list[T], limit: int, key: Any) -> Page[T]:
    """Of one more than was asked for: the page, and ``key`` of its last if there is more."""
    items = found[:limit]
    return Page(items=items, next=str(key(items[-1])) if len(found) > limit else None)
