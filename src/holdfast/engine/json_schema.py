"""Whether data fits a JSON Schema: the part of it that forms and event types are made of.

``type``, ``enum``, ``const``, bounds of numbers, texts and lists, ``pattern``, ``properties``, ``required``,
``additionalProperties``, ``items``, ``anyOf``, ``oneOf``, ``allOf``, and ``$ref`` within the schema. Anything else, and
what makes no sense, is passed over. The SQL function ``fits_form`` has the same rules, without ``pattern``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from math import inf
from typing import Any, Final

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
"""The whole schema, and what the value is called."""


def violations(schema: Mapping[str, Any], value: Any, what: str = "the form") -> Iterator[str]:
    """What does not fit, in words, one by one; ``what`` is called so where the whole of it does not."""
    yield from _look(schema, value, "", (schema, what), 0)


def _look(rule: Any, value: Any, where: str, root: Root, depth: int) -> Iterator[str]:
    if not isinstance(rule, Mapping) or depth > DEEPEST:
        return
    if "$ref" in rule:
        yield from _look(referred(rule["$ref"], root[0]), value, where, root, depth + 1)
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
            yield from _look(rule["items"], item, f"{where}[{index}]", root, depth + 1)
    for part in _listed(rule, "allOf"):
        yield from _look(part, value, where, root, depth + 1)
    for word in ("anyOf", "oneOf"):
        choices = _listed(rule, word)
        if choices and not any(not [*_look(choice, value, where, root, depth + 1)] for choice in choices):
            yield f"{at} fits none of what it may be"


def _fields(rule: Mapping[str, Any], value: dict[str, Any], where: str, root: Root, depth: int) -> Iterator[str]:
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
