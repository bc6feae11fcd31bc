"""The command line of a command job: ``["convert", "{source}", "-resize", "{width}x", "{target}"]``.

A value goes into one element of the list and cannot become two, nor reach a shell, for there is none. What it could
still do is pass for an option (``--output=…``), so text that begins with a dash is refused where it would begin an
element, unless a ``--`` of the template's own comes before. The program itself is never taken from a payload.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from string import Formatter
from typing import Any

from holdfast.errors import InvalidArguments, InvalidSetting

Argument = str | int | float
Part = tuple[str, str | None]


def builder(kind: str, template: Sequence[str], fields: Mapping[str, Any] | None = None) -> Callable[..., list[str]]:
    """A function from the payload's fields to the command line, with a signature that says what they are."""
    if isinstance(template, str) or not template:
        raise _invalid(kind, "a command is a list: the program, then its arguments")
    parts = [_parsed(kind, element) for element in template]
    names = list(dict.fromkeys(name for element in parts for _, name in element if name is not None))
    if any(name is not None for _, name in parts[0]):
        raise _invalid(kind, "the program itself cannot come from a payload")
    types = dict.fromkeys(names, Argument) | dict(fields or {})
    if types.keys() != set(names):
        raise _invalid(kind, f"no element has the field {', '.join(sorted(types.keys() - set(names)))}")

    def build(**values: Any) -> list[str]:
        made, guarded = [], True
        for element in parts:
            made.append(_filled(kind, element, values, guarded))
            guarded = guarded and made[-1] != "--"
        return made

    parameters = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=types[name]) for name in names]
    build.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    build.__annotations__ = types
    build.__name__ = kind
    return build


def checked(kind: str, argv: object) -> list[str]:
    """What a function of the user's own has made."""
    if isinstance(argv, str) or not isinstance(argv, Sequence) or not argv:
        raise InvalidArguments(f"{kind}: a command line is a list of text")
    for element in argv:
        if not isinstance(element, str) or "\0" in element:
            raise InvalidArguments(f"{kind}: an element of the command line is not text that a program can be given")
    return list(argv)


def _parsed(kind: str, element: object) -> list[Part]:
    if not isinstance(element, str):
        raise _invalid(kind, "every element of a command is text")
    try:
        found = list(Formatter().parse(element))
    except ValueError as error:
        raise _invalid(kind, f"{element!r}: {error}") from None
    parts = []
    for literal, name, form, conversion in found:
        if name is not None and (form or conversion or not name.isidentifier()):
            raise _invalid(kind, f"{element!r}: a field is a plain name in braces")
        parts.append((literal, name))
    return parts or [("", None)]


def _filled(kind: str, element: list[Part], values: Mapping[str, Any], guarded: bool) -> str:
    made = ""
    for literal, name in element:
        made += literal
        if name is not None:
            value = values[name]
            if isinstance(value, bool) or not isinstance(value, (str, int, float)):
                raise InvalidArguments(f"{kind}: {name} is {type(value).__name__}, not text or a number")
            if guarded and not made and isinstance(value, str) and value.startswith("-"):
                raise InvalidArguments(f"{kind}: {name} begins with a dash, and would be taken for an option")
            made += str(value)
    return made


def _invalid(kind: str, why: str) -> InvalidSetting:
    return InvalidSetting(
        f"{kind}: {why}", code="invalid_command", fix='For example ["convert", "{source}", "{target}"].'
    )
