"""Which failures are one and the same (DP-15): a short text that stays when an id, a number or a line of code changes.

It is made of the kind, the error's code, the shape of its message, and the place in the user's own code where it was
raised (``module:function``; not the line, which every edit above it would move). Those who have only SQL have the same
rule there (``code/15_fingerprint.sql``), and a test compares the two. So the patterns keep to what both read alike
(what stands before never fits what comes next), and each begins where a run of its characters begins: the time is
linear, whoever wrote the message.
"""

from __future__ import annotations

import hashlib
import re
from typing import Final

READ: Final = 1_000
"""How much of a message is looked at."""
KEPT: Final = 300
"""And how much of its shape is told apart."""
LENGTH: Final = 16

_HEX: Final = "[0-9A-Fa-f]"
RULES: Final = (
    # What it is in a message that differs from one failure to the next, and what stands for it in the shape.
    (rf"{_HEX}{{8}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{12}}", "<id>"),
    (r"[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9]{2}:[0-9]{2}[0-9:.,]*(Z|[+-][0-9]{2}:?[0-9]{2})?", "<time>"),
    (r"[0-9]{4}-[0-9]{2}-[0-9]{2}", "<time>"),
    (r'"[^"]*"', "<text>"),
    (r"`[^`]*`", "<text>"),
    (r"(^|[^A-Za-z0-9'])'[^']*'", r"\1<text>"),  # not the apostrophe of a word
    (r"(^|[^A-Za-z0-9+.-])[A-Za-z][A-Za-z0-9+.-]*://[^ \t\r\n]+", r"\1<url>"),
    (r"(^|[^A-Za-z0-9])[A-Za-z]:\\[^ \t\r\n:,;)]+", r"\1<path>"),
    (r"(^|[^A-Za-z0-9</])/[^ \t\r\n:,;)]+", r"\1<path>"),
    (r"(^|[^A-Za-z0-9_])[A-Za-z_]*[0-9][A-Za-z0-9_]*", r"\1<n>"),
    (r"(^|[^A-Za-z0-9_])[A-Fa-f]{8,}", r"\1<n>"),
    (r"<n>([.,:]+<n>)+", "<n>"),
    (r"[ \t\r\n]+", " "),
)
_RULES: Final = tuple((re.compile(pattern), becomes) for pattern, becomes in RULES)


def shape(message: str) -> str:
    """The message without what differs from one failure to the next: ids, numbers, times, quoted text, paths."""
    text = message[:READ]
    for pattern, becomes in _RULES:
        text = pattern.sub(becomes, text)
    return text.strip(" ")[:KEPT]


def fingerprint(kind: str, code: str, message: str, frame: str | None = None) -> str:
    """The name of the group that a dead letter belongs to, within its tenant."""
    parts = "\n".join((kind, code, shape(message), frame or ""))
    return hashlib.sha256(parts.encode()).hexdigest()[:LENGTH]
