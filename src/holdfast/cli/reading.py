"""What is given on the command line as data: JSON, ``@file``, ``-`` for stdin, or ``name=value``."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import typer

from holdfast.engine.payload import decode
from holdfast.errors import InvalidPayload, InvalidSetting
from holdfast.features.approvals.forms import as_json
from holdfast.kind import PAYLOAD_LIMIT

# Escapes and spaces may make the text longer than what is stored; beyond this it is not read to the end.
READ_LIMIT = 8 * PAYLOAD_LIMIT
_DOCUMENT = ("{", "[", '"', "@")


def document(given: str) -> Any:
    """The JSON that was given, or that the file or stdin holds."""
    return decode(text_of(given))


def text_of(given: str) -> str | bytes:
    """What was given, or what the file or stdin holds."""
    if given == "-":
        return _bounded(sys.stdin.buffer.read(READ_LIMIT + 1))
    if not given.startswith("@"):
        return given
    try:
        with Path(given[1:]).open("rb") as file:
            return _bounded(file.read(READ_LIMIT + 1))
    except OSError as error:
        raise InvalidPayload(f"cannot read {given[1:]!r}: {error.strerror or error}", code="unreadable_file") from error


def _bounded(content: bytes) -> bytes:
    if len(content) > READ_LIMIT:
        raise InvalidPayload(f"the payload has more than {READ_LIMIT:,} bytes", code="payload_too_large")
    return content


def secret_of(given: str) -> str:
    """What was given, or the line that stdin holds: a secret that need not stand in the history of a shell."""
    if given != "-":
        return given
    return sys.stdin.buffer.readline(1_000).decode(errors="replace").strip()


def pairs(given: Sequence[str]) -> dict[str, str]:
    """``name=value``, each name once; the value is all after the first ``=``."""
    found: dict[str, str] = {}
    for pair in given:
        name, sign, value = pair.partition("=")
        if not sign or not name:
            raise typer.BadParameter(f"{pair!r} is not of the form name=value")
        if name in found:
            raise InvalidSetting(f"{name!r} is given twice", code="conflicting_options")
        found[name] = value
    return found


def data_of(given: Sequence[str]) -> Any:
    """A document, ``name=value`` in any number, or both: what is named goes into the document.

    A value is read as JSON where it is JSON: ``invoice=7`` is a number, ``'invoice="7"'`` is text.
    """
    whole = given[:1] if given and _is_document(given[0]) else []
    named = {name: as_json(value) for name, value in pairs(given[len(whole) :]).items()}
    return merged(document(whole[0]) if whole else {}, named)


def merged(whole: Any, named: dict[str, Any]) -> Any:
    if named and not isinstance(whole, dict):
        raise InvalidSetting(
            "only into an object can more be put by name", code="conflicting_options", fix="Give one or the other."
        )
    return whole | named if named else whole


def _is_document(given: str) -> bool:
    return given == "-" or given.startswith(_DOCUMENT) or "=" not in given
