"""The file of ``holdfast audit export``: JSON lines with a header, then for each block its events, actions and seal.

An event is ``{"event": {"seq": …}}`` with the fields that are hashed, under their names and in their order; an action
likewise. A seal has its lists of numbers and digests as hexadecimal text.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Iterator
from typing import Any

from holdfast.errors import InvalidInput
from holdfast.features.audit.model import ACTION_FIELDS, EVENT_FIELDS, Item, Seal
from holdfast.features.audit.verification import Block

FORMAT = 1
_BYTES = ("events", "actions", "contents")


def header_line(start: Seal | None) -> str:
    return _line({"holdfast": "audit", "format": FORMAT, "behind": None if start is None else _seal(start)})


def block_lines(block: Block) -> Iterator[str]:
    for item in block.events:
        yield _line({"event": dict(zip(EVENT_FIELDS, item, strict=True))})
    for item in block.actions:
        yield _line({"action": dict(zip(ACTION_FIELDS, item, strict=True))})
    yield _line({"seal": _seal(block.seal)})


def read_header(lines: Iterator[str]) -> Seal | None:
    """Read the header: the last seal before the first block of the file, or None."""
    first = _read(next(lines, ""))
    if first.get("holdfast") != "audit" or first.get("format") != FORMAT:
        raise InvalidInput("this file was not written by `holdfast audit export`", code="invalid_audit_file")
    return None if first["behind"] is None else _seal_of(first["behind"])


def read_blocks(lines: Iterable[str]) -> Iterator[Block]:
    """Read the blocks. Rows after the last seal belong to no block and are ignored."""
    events: list[Item] = []
    actions: list[Item] = []
    for line in lines:
        part = _read(line)
        if "event" in part:
            events.append(_item(part["event"], EVENT_FIELDS))
        elif "action" in part:
            actions.append(_item(part["action"], ACTION_FIELDS))
        elif "seal" in part:
            yield Block(_seal_of(part["seal"]), events, actions)
            events, actions = [], []


def _line(value: dict[str, Any]) -> str:
    return json.dumps(value, separators=(",", ":")) + "\n"


def _seal(seal: Seal) -> dict[str, Any]:
    values = {field.name: getattr(seal, field.name) for field in dataclasses.fields(seal)}
    return values | {name: values[name].hex() for name in _BYTES if values[name] is not None}


def _seal_of(values: Any) -> Seal:
    try:
        texts = {name: bytes.fromhex(values[name]) for name in _BYTES if values.get(name) is not None}
        return Seal(**(values | texts))
    except (TypeError, KeyError, ValueError) as error:
        raise InvalidInput(f"malformed seal in the file: {error}", code="invalid_audit_file") from error


def _item(values: Any, fields: tuple[str, ...]) -> Item:
    try:
        return tuple(values[name] for name in fields)
    except (TypeError, KeyError) as error:
        raise InvalidInput(f"a row of the file lacks {error}", code="invalid_audit_file") from error


def _read(line: str) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except ValueError as error:
        raise InvalidInput(f"a line of the file is not JSON: {error}", code="invalid_audit_file") from error
    if not isinstance(value, dict):
        raise InvalidInput("a line of the file is not an object", code="invalid_audit_file")
    return value
