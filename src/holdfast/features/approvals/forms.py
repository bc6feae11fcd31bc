"""A form (JSON Schema) field by field, for people who fill it in: what is asked, what may be said, and what their text
means.

Only a help: whether data fits is for ``engine/json_schema.py: violations`` to say, which knows the whole schema.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

from holdfast.engine.json_schema import DEEPEST, referred
from holdfast.engine.payload import decode
from holdfast.errors import InvalidPayload

MOST_PARTS: Final = 500
_YES: Final = {"true": True, "yes": True, "false": False, "no": False}
_BOUNDS: Final = (
    ("minimum", "at least {}"),
    ("exclusiveMinimum", "more than {}"),
    ("maximum", "at most {}"),
    ("exclusiveMaximum", "less than {}"),
    ("minLength", "at least {} characters"),
    ("maxLength", "at most {} characters"),
    ("minItems", "at least {} items"),
    ("maxItems", "at most {} items"),
    ("pattern", "must match {}"),
    ("format", "{}"),
)


@dataclass(frozen=True, slots=True)
class Field:
    """``types`` are those of JSON Schema, none where anything may stand; ``bounds`` and ``about`` are words."""

    name: str
    required: bool
    types: tuple[str, ...] = ()
    choices: tuple[Any, ...] = ()
    bounds: tuple[str, ...] = ()
    about: str | None = None

    def read(self, text: str) -> Any:
        """What somebody wrote, in the type that is asked for; as it is, where it cannot be that."""
        for choice in self.choices:
            if text == plainly(choice):
                return choice
        if "string" in self.types:
            return text
        if "boolean" in self.types and text.strip().lower() in _YES:
            return _YES[text.strip().lower()]
        return as_json(text)


def fields(schema: Any) -> list[Field]:
    """The fields of a form, in their order; none of a form that does not name any."""
    asked: dict[str, Any] = {}
    required: dict[str, None] = {}
    for part in _parts(schema, schema):
        required.update((name, None) for name in _listed_fields(part.get("required")) if isinstance(name, str))
        properties = part.get("properties")
        if isinstance(properties, Mapping):
            asked = {str(name): rule for name, rule in properties.items()} | asked
    asked |= {name: {} for name in required if name not in asked}
    return [_field(name, name in required, rule, schema) for name, rule in asked.items()]


def _field(name: str, required: bool, rule: Any, root: Any) -> Field:
    types: dict[str, None] = {}
    choices: list[Any] = []
    bounds: dict[str, None] = {}
    about: str | None = None
    for part in _parts(rule, root):
        types.update((kind, None) for kind in _listed_fields(part.get("type")) if isinstance(kind, str))
        choices += _listed_fields(part.get("enum")) + ([part["const"]] if "const" in part else [])
        bounds.update((words.format(part[key]), None) for key, words in _BOUNDS if key in part)
        said = part.get("description")
        about = about or (said if isinstance(said, str) else None)
    return Field(name, required, tuple(types), tuple(choices), tuple(bounds), about)


def _parts(rule: Any, root: Any) -> Iterator[Mapping[str, Any]]:
    """The rule itself, what it refers to, and what it is made of. One may refer to itself: there is an end to it."""
    return islice(_every_part(rule, root, 0), MOST_PARTS)


def _every_part(rule: Any, root: Any, depth: int) -> Iterator[Mapping[str, Any]]:
    if not isinstance(rule, Mapping) or depth > DEEPEST:
        return
    yield rule
    if "$ref" in rule:
        yield from _every_part(referred(rule["$ref"], root), root, depth + 1)
    for word in ("allOf", "anyOf", "oneOf"):
        for part in _listed_fields(rule.get(word)):
            yield from _every_part(part, root, depth + 1)


def _listed_fields(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [] if value is None else [value]


def as_json(text: str) -> Any:
    """``7``, ``true``, ``null``, ``"7"``, ``[1]``, ``{"a": 1}`` for what they say; any other text for itself."""
    try:
        return decode(text)
    except InvalidPayload:
        return text


def plainly(value: Any) -> str:
    """A value as somebody would write it: text as it is, the rest as JSON has it."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
