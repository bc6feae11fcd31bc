"""Arrays in the form in which PostgreSQL has them itself: the server need not read the text of thousands of ids, and
nobody has to write it. ``connections.py`` tells the driver that they are ready to be sent."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from holdfast.engine.ids import parse_id
from holdfast.errors import InvalidInput


class Ids(bytes):
    """``uuid[]``"""


class Numbers(bytes):
    """``int[]``"""


class Words(bytes):
    """``text[]``"""


# Of each the type of the array, as the driver names it, and of what is in it.
TYPES: dict[type[bytes], tuple[int, int]] = {Ids: (2951, 2950), Numbers: (1007, 23), Words: (1009, 25)}

_LENGTH = "00000010"  # of an id, in front of each


def ids(values: Sequence[str]) -> Ids:
    """If each has as many digits as an id, and dashes where an id has them, none can be taken for two, or for anything
    else; whatever looks odd is looked at one by one."""
    count = len(values)
    text = ",".join(values)
    digits = text.replace("-", "")
    alike = digits[32::33] == "," * (count - 1) and all(text[at::37] == "-" * count for at in (8, 13, 18, 23))
    found = _written(digits) if alike and count else b""
    if len(found) != 20 * count:
        found = _written(",".join([parse_id(value).replace("-", "") for value in values]))
    return Ids(_head(Ids, count) + found)


def _written(digits: str) -> bytes:
    """Nothing if these are no digits; what is left out of them (white space) is missed afterwards."""
    try:
        return bytes.fromhex(_LENGTH + digits.replace(",", _LENGTH))
    except ValueError:
        return b""


def numbers(values: Sequence[int]) -> Numbers:
    count = len(values)
    pairs = [4] * (2 * count)
    pairs[1::2] = values
    try:
        return Numbers(_head(Numbers, count) + struct.pack(f">{2 * count}i", *pairs))
    except struct.error:
        raise InvalidInput("a number is out of range", code="invalid_input") from None


def words(values: Sequence[str]) -> Words:
    """A few, each of them often."""
    written = {value: struct.pack(">i", len(value.encode())) + value.encode() for value in set(values)}
    return Words(_head(Words, len(values)) + b"".join([written[value] for value in values]))


def _head(kind: type[bytes], count: int) -> bytes:
    """Dimensions, no nulls, the type; how many there are, beginning with the first."""
    return struct.pack(">iiiii", 1, 0, TYPES[kind][1], count, 1) if count else struct.pack(">iii", 0, 0, TYPES[kind][1])
