"""A form that people fill in, from the JSON schema of a gate: its fields, and back from what was posted to data.

What a schema says of the top level becomes fields; what is nested is written as JSON. Whether the data fits is not
decided here (``domain.forms`` does, and the store once more): what cannot be read is handed on as it was written.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from holdfast.features.approvals.forms import referred

Widget = Literal["text", "number", "integer", "checkbox", "choice", "json"]

PREFIX = "f:"
WHOLE = "whole"
MOST_FIELDS = 200
DEEPEST = 20


@dataclass(frozen=True, slots=True)
class Field:
    """One of a form. ``value`` is what stands in it; for a choice the place among ``choices``."""

    name: str
    label: str
    widget: Widget
    required: bool = False
    help: str | None = None
    choices: tuple[Any, ...] = ()
    value: str = ""
    least: float | None = None
    most: float | None = None
    longest: int | None = None

    @property
    def key(self) -> str:
        """Its name in what is posted, where no field of ours can be taken for it."""
        return PREFIX + self.name


def fields_of(form: Mapping[str, Any] | None, given: Mapping[str, str] | None = None) -> list[Field]:
    """``given`` is what was posted before, to be shown again."""
    if form is None:
        return []
    return list(_fields(form, given))


def _fields(form: Mapping[str, Any], given: Mapping[str, str] | None) -> Iterator[Field]:
    rule = _resolved(form, form)
    known = rule.get("properties")
    if not isinstance(known, Mapping) or not known:
        yield Field(WHOLE, "The form, as JSON", "json", required=True, value=(given or {}).get(PREFIX + WHOLE, "{}"))
        return
    required = rule.get("required")
    needed = set(map(str, required)) if isinstance(required, list) else set()
    for name, inner in list(known.items())[:MOST_FIELDS]:
        yield _field(str(name), _resolved(inner, form), str(name) in needed, given)


def _field(name: str, rule: Mapping[str, Any], required: bool, given: Mapping[str, str] | None) -> Field:
    title, told = rule.get("title"), rule.get("description")
    choices = _choices(rule)
    widget = _widget(rule, choices)
    shown = _shown(rule.get("default"), widget, choices) if given is None else given.get(PREFIX + name, "")
    return Field(
        name=name,
        label=title if isinstance(title, str) and title else name,
        widget=widget,
        required=required and widget != "checkbox",
        help=told if isinstance(told, str) else None,
        choices=choices,
        value=shown,
        least=_number(rule.get("minimum")),
        most=_number(rule.get("maximum")),
        longest=_length(rule.get("maxLength")),
    )


def _resolved(rule: Any, root: Mapping[str, Any], depth: int = 0) -> Mapping[str, Any]:
    """What a rule refers to, and of "this or nothing" the this: so pydantic writes what may be left out."""
    if not isinstance(rule, Mapping) or depth > DEEPEST:
        return {}
    if "$ref" in rule:
        inner = _resolved(referred(rule["$ref"], root), root, depth + 1)
        return {**inner, **{name: value for name, value in rule.items() if name != "$ref"}}
    for word in ("anyOf", "oneOf"):
        kinds = rule.get(word)
        if isinstance(kinds, list):
            real = [kind for kind in kinds if not (isinstance(kind, Mapping) and kind.get("type") == "null")]
            if len(real) == 1:
                return {**_resolved(real[0], root, depth + 1), **{n: v for n, v in rule.items() if n != word}}
    return rule


def _choices(rule: Mapping[str, Any]) -> tuple[Any, ...]:
    given = rule.get("enum")
    if isinstance(given, list):
        return tuple(given[:1000])
    return (rule["const"],) if "const" in rule else ()


def _widget(rule: Mapping[str, Any], choices: tuple[Any, ...]) -> Widget:
    if choices:
        return "choice"
    kinds = rule.get("type")
    real = [kind for kind in kinds if kind != "null"] if isinstance(kinds, list) else [kinds]
    match real:
        case ["string"]:
            return "text"
        case ["integer"]:
            return "integer"
        case ["number"]:
            return "number"
        case ["boolean"]:
            return "checkbox"
    return "json"


def _shown(default: Any, widget: Widget, choices: tuple[Any, ...]) -> str:
    if default is None:
        return ""
    if widget == "choice":
        return next((str(place) for place, choice in enumerate(choices) if choice == default), "")
    if widget == "checkbox":
        return "on" if default is True else ""
    return default if isinstance(default, str) and widget != "json" else json.dumps(default)


def data_of(form: Mapping[str, Any] | None, given: Mapping[str, str]) -> Any:
    """What was filled in. A field that was left empty is not part of it."""
    if form is None:
        return None
    found: dict[str, Any] = {}
    for field in fields_of(form, given):
        if field.name == WHOLE and field.widget == "json" and field.key in given:
            return _read(field, given[field.key])
        text = given.get(field.key, "")
        if field.widget == "checkbox":
            found[field.name] = text != ""
        elif text != "":
            found[field.name] = _read(field, text)
    return found


def _read(field: Field, text: str) -> Any:
    try:
        match field.widget:
            case "choice":
                place = int(text)
                return field.choices[place] if 0 <= place < len(field.choices) else text
            case "integer":
                return int(text)
            case "number":
                value = float(text)
                return value if math.isfinite(value) else text
            case "json":
                return json.loads(text)
    except (ValueError, RecursionError):
        pass
    return text


def _number(value: Any) -> float | None:
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def _length(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None
