"""JSON Schema forms: validation, fields, parsing of answers.

Whether data fits a form: the part of JSON Schema that forms are made of, as pydantic and people write it.

``type``, ``enum``, ``const``, bounds of numbers, texts and lists, ``pattern``, ``properties``, ``required``,
``additionalProperties``, ``items``, ``anyOf``, ``oneOf``, ``allOf``, and ``$ref`` within the schema. What is not known,
or makes no sense, is passed over: a form is made by whoever asks, and the typed value is checked once more where it
is used. Where people may approve by SQL, the database has the same in its own words (``fits_form``).

A form field by field, for people who fill it in: what is asked, what may be said, and what their text means.

Only a help: whether data fits is for ``forms.violations`` to say, which knows the whole schema.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from math import inf
from typing import Any, Final

from holdfast.engine.payload import decode
from holdfast.errors import InvalidPayload

_TYPES: Final[Mapping[str, tuple[type, ...]]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "boolean": (bool,),
    "null": (type(None),),
    "number": (int, float),
    "integer": (int,),
}
DEEPEST: Final = 20


def violations(schema: Mapping[str, Any], value: Any) -> Iterator[str]:
    """What does not fit, in words, one by one."""
    yield from _look(schema, value, "", schema, 0)


def _look(rule: Any, value: Any, where: str, root: Mapping[str, Any], depth: int) -> Iterator[str]:
    if not isinstance(rule, Mapping) or depth > DEEPEST:
        return
    if "$ref" in rule:
        yield from _look(referred(rule["$ref"], root), value, where, root, depth + 1)
    at = where or "the form"
    kinds = rule.get("type")
    kinds = [kinds] if isinstance(kinds, str) else kinds
    if isinstance(kinds, list) and not any(_is(kind, value) for kind in kinds):
        yield f"{at} must be {' or '.join(map(str, kinds))}"
        return
    choices = rule.get("enum")
    if isinstance(choices, list) and not any(_same(value, choice) for choice in choices):
        yield f"{at} must be one of {', '.join(map(str, choices))}"
    if "const" in rule and not _same(value, rule["const"]):
        yield f"{at} must be {rule['const']}"
    yield from _bounds(rule, value, at)
    if isinstance(value, dict):
        yield from _fields(rule, value, where, root, depth)
    if isinstance(value, list) and "items" in rule:
        for index, item in enumerate(value):
            yield from _look(rule["items"], item, f"{where}[{index}]", root, depth + 1)
    for part in _listed(rule, "allOf"):
        yield from _look(part, value, where, root, depth + 1)
    for word in ("anyOf", "oneOf"):
        choices = _listed(rule, word)
        if choices and not any(not [*_look(choice, value, where, root, depth + 1)] for choice in choices):
            yield f"{at} fits none of what it may be"


def _fields(rule: Mapping[str, Any], value: dict[str, Any], where: str, root: Any, depth: int) -> Iterator[str]:
    known = rule.get("properties")
    properties = known if isinstance(known, Mapping) else {}
    for name in _listed(rule, "required"):
        if name not in value:
            yield f"{where}{'.' if where else ''}{name} is missing"
    for name, item in value.items():
        path = f"{where}.{name}" if where else name
        if name in properties:
            yield from _look(properties[name], item, path, root, depth + 1)
        elif rule.get("additionalProperties") is False:
            yield f"{path} is not part of the form"


def _bounds(rule: Mapping[str, Any], value: Any, at: str) -> Iterator[str]:
    if isinstance(value, str | list):
        what = "characters" if isinstance(value, str) else "items"
        least, most = ("minLength", "maxLength") if isinstance(value, str) else ("minItems", "maxItems")
        if len(value) < _number(rule, least, 0):
            yield f"{at} must have at least {rule[least]} {what}"
        if len(value) > _number(rule, most, inf):
            yield f"{at} must have at most {rule[most]} {what}"
    if isinstance(value, str) and "pattern" in rule and not _matches(rule["pattern"], value):
        yield f"{at} must match {rule['pattern']}"
    if isinstance(value, int | float) and not isinstance(value, bool):
        if value < _number(rule, "minimum", -inf):
            yield f"{at} must be at least {rule['minimum']}"
        if value > _number(rule, "maximum", inf):
            yield f"{at} must be at most {rule['maximum']}"
        if value <= _number(rule, "exclusiveMinimum", -inf):
            yield f"{at} must be more than {rule['exclusiveMinimum']}"
        if value >= _number(rule, "exclusiveMaximum", inf):
            yield f"{at} must be less than {rule['exclusiveMaximum']}"


def _number(rule: Mapping[str, Any], name: str, usual: float) -> float:
    value = rule.get(name)
    return value if isinstance(value, int | float) and not isinstance(value, bool) else usual


def _listed(rule: Mapping[str, Any], name: str) -> list[Any]:
    value = rule.get(name)
    return value if isinstance(value, list) else []


def _is(kind: Any, value: Any) -> bool:
    if isinstance(value, bool):  # an int to Python, and never meant as a number
        return bool(kind == "boolean")
    if kind == "integer" and isinstance(value, float):
        return value.is_integer()
    return isinstance(value, _TYPES.get(kind, (object,)))


def _matches(pattern: Any, value: str) -> bool:
    try:
        return re.search(pattern, value) is not None
    except (re.error, TypeError):  # one that Python does not know is passed over, too
        return True


def _same(one: Any, other: Any) -> bool:
    """As JSON: 7 is 7.0, and 1 is not true."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_same(value, other[name]) for name, value in one.items())
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_same, one, other))
    return bool(one == other)


def referred(ref: Any, root: Mapping[str, Any]) -> Any:
    found: Any = root
    for part in str(ref).removeprefix("#/").split("/"):
        found = found.get(part) if isinstance(found, Mapping) else None
    return found


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
