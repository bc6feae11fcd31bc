"""The fields of a form (JSON Schema) for people who fill it in: names, types, allowed values, and parsing of their
input.

A convenience only: ``engine/json_schema.py: violations`` checks the data against the whole schema.
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

MAX_PARTS: Final = 500
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
    """A field of a form. ``types`` are those of JSON Schema, empty if any type is allowed; ``bounds`` and ``about`` are
    texts."""

    name: str
    required: bool
    types: tuple[str, ...] = ()
    choices: tuple[Any, ...] = ()
    bounds: tuple[str, ...] = ()
    about: str | None = None
    default: Any = None

    def read(self, text: str) -> Any:
        """Parse the input as the type of the field; text that cannot be parsed is returned unchanged."""
        for choice in self.choices:
            if text == plainly(choice):
                return choice
        if "string" in self.types:
            return text
        if "boolean" in self.types and text.strip().lower() in _YES:
            return _YES[text.strip().lower()]
        return as_json(text)


def fields(schema: Any) -> list[Field]:
    """The fields of a form in order; empty if the form names none."""
    rules: dict[str, Any] = {}
    required: dict[str, None] = {}
    for part in _parts(schema, schema):
        required.update((name, None) for name in _listed_fields(part.get("required")) if isinstance(name, str))
        properties = part.get("properties")
        if isinstance(properties, Mapping):
            rules = {str(name): rule for name, rule in properties.items()} | rules
    rules |= {name: {} for name in required if name not in rules}
    return [_field(name, name in required, rule, schema) for name, rule in rules.items()]


def _field(name: str, required: bool, rule: Any, root: Any) -> Field:
    types: dict[str, None] = {}
    choices: list[Any] = []
    bounds: dict[str, None] = {}
    about: str | None = None
    default: Any = None
    for part in _parts(rule, root):
        types.update((kind, None) for kind in _listed_fields(part.get("type")) if isinstance(kind, str))
        choices += _listed_fields(part.get("enum")) + ([part["const"]] if "const" in part else [])
        bounds.update((text.format(part[key]), None) for key, text in _BOUNDS if key in part)
        description = part.get("description")
        about = about or (description if isinstance(description, str) else None)
        default = part.get("default") if default is None else default
    return Field(name, required, tuple(types), tuple(choices), tuple(bounds), about, default)


def _parts(rule: Any, root: Any) -> Iterator[Mapping[str, Any]]:
    """The rule, the rules it refers to and those it combines. Bounded, because a rule may refer to itself."""
    return islice(_every_part(rule, root, 0), MAX_PARTS)


def _every_part(rule: Any, root: Any, depth: int) -> Iterator[Mapping[str, Any]]:
    if not isinstance(rule, Mapping) or depth > DEEPEST:
        return
    yield rule
    if "$ref" in rule:
        yield from _every_part(referred(rule["$ref"], root), root, depth + 1)
    for keyword in ("allOf", "anyOf", "oneOf"):
        for part in _listed_fields(rule.get(keyword)):
            yield from _every_part(part, root, depth + 1)


def _listed_fields(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [] if value is None else [value]


def as_json(text: str) -> Any:
    """Parse the text as JSON; text that is not JSON is returned unchanged."""
    try:
        return decode(text)
    except InvalidPayload:
        return text


def plainly(value: Any) -> str:
    """A value as a person would write it: a string as it is, other values as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
