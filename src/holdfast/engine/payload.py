"""Encodes and decodes payloads, results and checkpoints as JSON, and refuses values that cannot be stored.

Invariant: a value that ``encode`` accepts can be stored by both stores, and ``decode`` returns it with the same meaning
(tuples as lists, enum members as their values). Other values are refused with a stable code and the path of the
offending item, never its value. Nothing recurses in Python, and the work before a refusal is bounded by ``limit``, also
for values that contain themselves.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from math import isfinite
from typing import Any, Final, TypeAlias

from holdfast.errors import InvalidPayload

JsonValue: TypeAlias = "dict[str, JsonValue] | list[JsonValue] | str | int | float | bool | None"

DEFAULT_LIMIT: Final = 1_048_576
MAX_DEPTH: Final = 100
# At least 309, because a store may return 1e308 written out in full; far below the 4,300 that Python converts by
# default, because the conversion takes quadratic time. (Other languages may lose digits from 2**53 on.)
MAX_DIGITS: Final = 1_000

_TOO_BIG: Final = 10**MAX_DIGITS
_BASES: Final = (str, int, float, dict, list, tuple)
_BOXES: Final = frozenset({dict, list, tuple})
_EXACT: Final = frozenset({*_BASES, bool, type(None)})
_UNSTORED: Final = "NUL or a lone surrogate, which cannot be stored"
_LONG: Final = f"an integer of more than {MAX_DIGITS:,} digits"
_VALID_JSON: Final = 'Write JSON, for example {"to": "ada@example.com"}.'
_NOT_FINITE: Final = "NaN and Infinity are not JSON"
_DEEP: Final = f"nested more than {MAX_DEPTH} deep"
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
_UNSTORABLE: Final = re.compile("[\x00\ud800-\udfff]")
_PLAIN_KEY: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,59}")

# The path of an item: the trail of its container (None at the root), and its key or index there.
_Trail: TypeAlias = "tuple[_Trail, object] | None"
_EVERYDAY: Final = 2**63
_WRAPPING: Final[_Trail] = (None, "")


def _writer(*, sort_keys: bool) -> Callable[[object], str]:
    """A function that writes compact JSON. ``JSONEncoder.encode`` creates a C encoder for each value, which takes
    longer than writing a small one; this creates it once, if the interpreter has it."""
    # No check for cycles: before an encoder runs, ``_inspect`` has bounded depth and size.
    plain = json.JSONEncoder(
        ensure_ascii=False, allow_nan=False, check_circular=False, separators=(",", ":"), sort_keys=sort_keys
    )
    make, quote = (getattr(json.encoder, name, None) for name in ("c_make_encoder", "encode_basestring"))
    if make is None or quote is None:
        return plain.encode
    write = make(None, plain.default, quote, None, ":", ",", sort_keys, plain.skipkeys, plain.allow_nan)
    return lambda value: "".join(write(value, 0))


_COMPACT: Final = _writer(sort_keys=False)
_SORTED: Final = _writer(sort_keys=True)


MARK: Final = '{"$holdfast":'
"""The beginning of a text that is sealed, or refers to a value stored elsewhere."""


def encode(value: object, *, limit: int = DEFAULT_LIMIT, what: str = "payload") -> str:
    """Compact JSON text of at most ``limit`` bytes in UTF-8; ``what`` names the value in a refusal."""
    return _write(_COMPACT, value, limit, what)


def refuse_reserved(text: str, what: str = "payload") -> str:
    """Refuse a user's value that looks like the text of the vault. Otherwise a user could write a reference, and would
    be shown the value that is stored there."""
    if text.startswith(MARK):
        raise InvalidPayload(f"a {what} must not look like a sealed or stored value", code="payload_reserved")
    return text


def canonical(value: object, *, limit: int = DEFAULT_LIMIT, what: str = "payload") -> str:
    """The same with keys sorted by code point at every depth, for hashing; ``1`` and ``1.0`` stay different."""
    return _write(_SORTED, value, limit, what)


def decode(text: str | bytes) -> JsonValue:
    """Read JSON text. ``encode`` accepts the result, if it is within the limit."""
    try:
        source = text if isinstance(text, str) else str(text, "utf-8")
        if not source.isascii():
            source.encode()  # a str may contain lone surrogates
        value: JsonValue = _read(source)
    except (UnicodeDecodeError, UnicodeEncodeError) as error:
        raise _refusal("payload_bad_text", "JSON text", f"not UTF-8 at {error.start}") from None
    except json.JSONDecodeError as error:
        # The depth at which the reader gives up depends on the stack of the program around it.
        if _opened(error.doc[: error.pos]) > MAX_DEPTH:
            raise _refusal("payload_too_deep", "JSON text", _DEEP) from None
        raise _refusal("payload_not_json", "JSON text", str(error), fix=_VALID_JSON) from None
    except ValueError as error:  # an interpreter that is configured to convert fewer digits
        raise _refusal("payload_bad_number", "JSON text", str(error)) from None
    except RecursionError:
        raise _refusal("payload_too_deep", "JSON text", _DEEP) from None
    # Text with few brackets is not deep, and without \u it cannot hide characters that cannot be stored: most texts
    # from a store need no inspection.
    escapes = "\\" in source and "\\u" in source  # searching for one character is ten times as fast
    if escapes or (len(source) > MAX_DEPTH and source.count("[") + source.count("{") > MAX_DEPTH):
        _inspect(value, len(source), "JSON text", texts=escapes)
    return value


class Unreadable(dict[str, Any]):
    """The value of a stored document that cannot be read: ``{"unreadable": why}``."""

    def __init__(self, why: str) -> None:
        super().__init__(unreadable=why)

    @property
    def why(self) -> str:
        return str(self["unreadable"])


def decode_for_display(text: str | bytes) -> Any:
    """Read JSON for display, whatever is stored in the database. Never raises: a number with too many digits stays
    text, and a document that cannot be read, or not be written again, becomes ``Unreadable``."""
    try:
        source = text if isinstance(text, str) else str(text, "utf-8")
        value = _LENIENT.decode(source)
        if _ESCAPED_SURROGATE.search(source):  # a lone surrogate, which cannot be sent in a response
            value = json.loads(_LOOSE.encode(value).encode("utf-8", "replace"))
    except RecursionError:
        return Unreadable(_DEEP)
    except (ValueError, TypeError) as error:
        return Unreadable(f"not JSON: {error}")
    if len(source) > 2 * MAX_DEPTH and source.count("[") + source.count("{") > MAX_DEPTH and _is_too_deep(value):
        return Unreadable(_DEEP)
    return value


def _is_too_deep(value: object) -> bool:
    level: list[Any] = [value]
    for _ in range(MAX_DEPTH):
        level = [
            item
            for box in level
            if isinstance(box, dict | list)
            for item in (box.values() if isinstance(box, dict) else box)
            if isinstance(item, dict | list)
        ]
        if not level:
            return False
    return True


def _digits(digits: str) -> int | str:
    return int(digits) if len(digits) <= MAX_DIGITS else digits


def _read(source: str) -> JsonValue:
    """``_READER.decode`` without its search for surrounding white space, which there usually is not. A short text
    cannot have a number that is too long, so its numbers are not checked one by one."""
    try:
        value, end = (_scan_short if len(source) <= MAX_DIGITS else _scan)(source, 0)
    except StopIteration:
        value, end = None, -1
    return value if end == len(source) else _decode(source)


def _opened(source: str) -> int:
    """The number of open brackets at the end of a piece of JSON, without those inside strings."""
    bare = _STRING.sub("", source)
    return bare.count("[") + bare.count("{") - bare.count("]") - bare.count("}")


def safe_text(text: str, limit: int) -> str:
    """At most ``limit`` characters that every store accepts; for errors of handlers. Never raises.

    Characters that cannot be stored become U+FFFD. A note at the end counts the cut characters, if it fits.
    """
    limit, size, note = max(limit, 0), len(text), ""
    if size > limit:
        # Measured with the largest possible count; the actual one is not longer.
        kept = limit - len(f"… [{size} characters cut]")
        if kept >= 0:
            limit, note = kept, f"… [{size - kept} characters cut]"
    return _UNSTORABLE.sub("\ufffd", text[:limit]) + note


def _write(writer: Callable[[object], str], value: object, limit: int, what: str) -> str:
    if not _is_plain(value):
        _inspect(value, limit, what)
    try:
        text = writer(value)
        size = len(text) if text.isascii() else len(text.encode())
    except UnicodeEncodeError:
        _inspect(value, limit, what, texts=True)
        raise
    except TypeError as error:  # a class that pretends to be another
        raise _refusal("payload_not_json", what, str(error)) from error
    except ValueError as error:  # an interpreter that is configured to convert fewer digits
        raise _refusal("payload_bad_number", what, str(error)) from error
    # The encoder writes NUL like this, and also "u0000" after a backslash, which is harmless.
    if "\\u0000" in text:
        _inspect(value, limit, what, texts=True)
    if size > limit:
        raise _refusal("payload_too_large", what, f"{size:,} bytes; at most {limit:,} are allowed")
    return text


def _is_plain(value: object) -> bool:
    """Whether it is a small object of short texts and ordinary numbers, like most payloads: no inspection needed."""
    if type(value) is not dict:
        return (type(value) is int and -_EVERYDAY < value < _EVERYDAY) or (type(value) is str and len(value) < 1024)
    if len(value) > 16:
        return False
    for key, item in value.items():
        kind = type(item)
        if type(key) is not str or not (
            (kind is int and -_EVERYDAY < item < _EVERYDAY)
            or (kind is str and len(item) < 1024)
            or kind is bool
            or item is None
        ):
            return False
    return True


def _inspect(root: object, limit: int, what: str, *, texts: bool = False) -> None:
    """Refuse, level by level, values that the C encoder would change, fail on or take very long for.

    Text is searched only if ``texts``: the encoded text shows whether that is necessary.
    """
    # ``room`` is a lower bound of the space left: every item takes a character and a comma, text its length. Without
    # it, a list that contains itself twice would take 2**100 steps before it is refused as too deep.
    room = limit + 2
    bare = type(root) in _BOXES
    level: list[tuple[Any, _Trail]] = [(root, None) if bare else ([root], _WRAPPING)]
    for _ in range(MAX_DEPTH if bare else MAX_DEPTH + 1):
        deeper: list[tuple[Any, _Trail]] = []
        for box, trail in level:
            room -= 2 * len(box)
            if room < 0:
                break
            named, checked = isinstance(box, dict), False
            items: Iterable[tuple[Any, Any]] = box.items() if named else enumerate(box)
            for key, item in items:
                if named:
                    if not checked and (texts or type(key) is not str):
                        _check_keys(box, what, trail)
                        checked = True
                    room -= len(key)
                kind = type(item)
                if kind not in _EXACT:
                    kind = _base(kind, what, (trail, key))
                if kind is str:
                    room -= len(item)
                    if texts and _UNSTORABLE.search(item):
                        raise _refusal("payload_bad_text", what, _UNSTORED, (trail, key))
                elif kind is int:
                    if not -_TOO_BIG < item < _TOO_BIG:
                        raise _refusal("payload_bad_number", what, _LONG, (trail, key))
                elif kind is float:
                    if not isfinite(item):
                        raise _refusal("payload_not_finite", what, _NOT_FINITE, (trail, key))
                elif kind in _BOXES:
                    deeper.append((item, (trail, key)))
        if room < 0:
            raise _refusal("payload_too_large", what, f"at least {limit - room:,} bytes; at most {limit:,} are allowed")
        if not deeper:
            return
        level = deeper
    raise _refusal("payload_too_deep", what, _DEEP)


def _base(kind: type, what: str, trail: _Trail) -> type:
    """The type as which the encoder treats a subclass: an IntEnum as an int, a named tuple as a list."""
    for base in _BASES:
        if issubclass(kind, base):
            return base
    name = f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins.")
    raise _refusal("payload_not_json", what, f"{name} is not JSON", trail)


def _check_keys(box: dict[Any, object], what: str, trail: _Trail) -> None:
    """Check all keys of a dict: called once per dict, if a key is not exactly a str or text has to be searched."""
    for key in box:
        # The encoder would turn 1, True and None into text, and they could not be told from text when read.
        if not issubclass(type(key), str):
            raise _refusal("payload_bad_key", what, f"a key is {type(key).__name__}, not str", trail)
        if _UNSTORABLE.search(key):
            raise _refusal("payload_bad_text", what, f"a key has {_UNSTORED}", trail)


def _refusal(code: str, what: str, why: str, trail: _Trail = None, fix: str | None = None) -> InvalidPayload:
    """``payload $.items[3].when: …``."""
    where = what if trail is None else f"{what} {path_of(trail)}"
    return InvalidPayload(f"{where}: {why}", code=code, fix=fix)


def path_of(trail: Any) -> str:
    """``$.items[3].when``; only the end of a long trail."""
    steps = []
    while trail is not None and trail[0] is not _WRAPPING:
        trail, key = trail
        plain = isinstance(key, str) and _PLAIN_KEY.fullmatch(key)
        steps.append(f".{plain[0]}" if plain else f"[{json.dumps(key)[:60]}]")
    return f"${'…' if len(steps) > 12 else ''}{''.join(reversed(steps[:12]))}"


def _read_int(digits: str) -> int:
    if len(digits) > MAX_DIGITS + digits.startswith("-"):  # before the quadratic conversion
        raise _refusal("payload_bad_number", "JSON text", _LONG)
    return int(digits)


def _read_float(digits: str) -> float:
    number = float(digits)
    if not isfinite(number):
        raise _refusal("payload_not_finite", "JSON text", _NOT_FINITE)
    return number


_READER: Final = json.JSONDecoder(parse_int=_read_int, parse_float=_read_float, parse_constant=_read_float)
_scan: Final[Callable[[str, int], tuple[JsonValue, int]]] = _READER.scan_once  # type: ignore[attr-defined]
_decode: Final[Callable[[str], JsonValue]] = _READER.decode
_SHORT: Final = json.JSONDecoder(parse_float=_read_float, parse_constant=_read_float)
_scan_short: Final[Callable[[str, int], tuple[JsonValue, int]]] = _SHORT.scan_once  # type: ignore[attr-defined]
_LENIENT: Final = json.JSONDecoder(parse_int=_digits)
_LOOSE: Final = json.JSONEncoder(ensure_ascii=False)
_ESCAPED_SURROGATE: Final = re.compile(r"\\u[dD][89a-fA-F]")
