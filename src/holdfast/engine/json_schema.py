"""JSON Schema: ``violations`` of data, and the ``fields`` of a form for people who fill it in.

Supported is the part that forms and event types use: ``type``, ``enum``, ``const``, bounds of numbers, texts and lists,
``pattern``, ``properties``, ``required``, ``additionalProperties``, ``items``, ``anyOf``, ``oneOf``, ``allOf``, and
``$ref`` within the schema. Other and malformed keywords are ignored. The SQL function ``fits_form`` has the same rules,
without ``pattern``.

``fields`` is a convenience only: names, types, allowed values, and parsing of input.
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
Root = tuple[Mapping[str, Any], str]
"""The whole schema, and the name of the value for messages."""


def violations(schema: Mapping[str, Any], value: Any, what: str = "the form") -> Iterator[str]:
    """The violations as messages; ``what`` names the whole value in them."""
    yield from _check(schema, value, "", (schema, what), 0)


def _check(rule: Any, value: Any, where: str, root: Root, depth: int) -> Iterator[str]:
    if not isinstance(rule, Mapping) or depth > DEEPEST:
        return
    if "$ref" in rule:
        yield from _check(referred(rule["$ref"], root[0]), value, where, root, depth + 1)
    at = where or root[1]
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
            yield from _check(rule["items"], item, f"{where}[{index}]", root, depth + 1)
    for part in _listed(rule, "allOf"):
        yield from _check(part, value, where, root, depth + 1)
    for word in ("anyOf", "oneOf"):
        choices = _listed(rule, word)
        if choices and not any(not [*_check(choice, value, where, root, depth + 1)] for choice in choices):
            yield f"{at} matches none of the allowed alternatives"


def _fields(rule: Mapping[str, Any], value: dict[str, Any], where: str, root: Root, depth: int) -> Iterator[str]:
    known = rule.get("properties")
    properties = known if isinstance(known, Mapping) else {}
    for name in _listed(rule, "required"):
        if name not in value:
            yield f"{where}{'.' if where else ''}{name} is missing"
    for name, item in value.items():
        path = f"{where}.{name}" if where else name
        if name in properties:
            yield from _check(properties[name], item, path, root, depth + 1)
        elif rule.get("additionalProperties") is False:
            yield f"{path} is not part of {root[1]}"


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


def _number(rule: Mapping[str, Any], name: str, default: float) -> float:
    value = rule.get(name)
    return value if isinstance(value, int | float) and not isinstance(value, bool) else default


def _listed(rule: Mapping[str, Any], name: str) -> list[Any]:
    value = rule.get(name)
    return value if isinstance(value, list) else []


def _is(kind: Any, value: Any) -> bool:
    if isinstance(value, bool):  # a bool is an int in Python, but not a number in JSON
        return bool(kind == "boolean")
    if kind == "integer" and isinstance(value, float):
        return value.is_integer()
    return isinstance(value, _TYPES.get(kind, (object,)))


def _matches(pattern: Any, value: str) -> bool:
    try:
        return re.search(pattern, value) is not None
    except (re.error, TypeError):  # a pattern that Python does not support is ignored
        return True


def _same(one: Any, other: Any) -> bool:
    """Equality in JSON: 7 equals 7.0, and 1 is not true."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_same(value, other[name]) for name, value in one.items())
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_same, one, other))
    return bool(one == other)


_NUMBERS: Final = {"integer": "number", "boolean": "number"}  # converted into one another


def json_types(rule: Any, root: Mapping[str, Any]) -> frozenset[str]:
    """The JSON types that a schema names; empty if it may allow any."""
    if isinstance(rule, Mapping) and "$ref" in rule:
        rule = referred(rule["$ref"], root)
    if not isinstance(rule, Mapping):
        return frozenset()
    if choices := rule.get("anyOf") or rule.get("oneOf"):
        each = [json_types(choice, root) for choice in choices]
        return frozenset().union(*each) if all(each) else frozenset()
    named = rule.get("type", ())
    return frozenset(_NUMBERS.get(name, name) for name in ([named] if isinstance(named, str) else named))


def misfit(wanted: Any, given: Any, root: Mapping[str, Any], given_root: Mapping[str, Any]) -> tuple[str, str] | None:
    """The types of the first place where no value of one schema fits the other, as far as types alone can tell."""
    ours, theirs = json_types(wanted, root), json_types(given, given_root)
    if ours and theirs and not ours & theirs:
        return " or ".join(sorted(ours)), " or ".join(sorted(theirs))
    if ours == theirs == {"array"} and "items" in wanted:
        # The items of a plan are complete schemas, each of another job's result.
        items = [(item, item) for item in given.get("prefixItems", ())] or [(given.get("items"), given_root)]
        for item, item_root in items:
            if found := misfit(wanted["items"], item, root, item_root):
                return f"array of {found[0]}", f"array of {found[1]}"
    return None


def referred(ref: Any, root: Mapping[str, Any]) -> Any:
    """The part of the schema that a ``$ref`` refers to; None if there is none."""
    target: Any = root
    for part in str(ref).removeprefix("#/").split("/"):
        target = target.get(part) if isinstance(target, Mapping) else None
    return target


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
