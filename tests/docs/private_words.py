"""Words that the project does not use, with their replacements.

`tests/docs/test_style.py` searches for them in help texts, errors, fixes, log lines, SQL, scripts and documentation.
`ALLOWED` has exceptions with reasons.
"""

from __future__ import annotations

import re
from typing import Final

# A pattern, and the replacement.
PRIVATE_WORDS: Final[dict[str, str]] = {
    r"duty|duties": "maintenance task",
    r"lanes?": "pipeline depth",
    r"\bin \w+ hands\b|hands? over": "claimed by, task pool",
    r"rouse[sd]?": "notify",
    r"recalls?": "cancellation check",
    r"colours?": "sync and async form",
    r"substrate": "system",
    r"put down": "sync declarations",
    r"bury|buries|buried": "dead-letter",
    r"leftovers?": "orphaned files",
    r"errands?|chores?": "task",
    r"whoever|somebody": "the caller, a person",
    r"what it (?:brings|brought|carries|makes|gives)": "the payload, the result",
    r"where what": "the URI of",
    r"at most so (?:many|long)": "maximum",
    r"the (?:first|newest|oldest|latest) first": "newest first",
    r"goes on|go on|went on": "resumes, continues",
    r"is let go|lets go": "is suspended",
    r"robbed": "never misses",
    r"a road|a place of its own": "a path",
    r"say goodbye": "close the lease",
    r"to look at|look at (?:it|them)": "read, show, inspect",
    r"\banew\b": "again",
    r"is (?:no|none) (?:more|longer) ours": "is no longer claimed by this worker",
    r"is away\b": "is unreachable",
}
_FOUND: Final = [(re.compile(rf"\b(?:{word})\b", re.IGNORECASE), instead) for word, instead in PRIVATE_WORDS.items()]

_CODE: Final = re.compile(r"`[^`]*`")

# Texts with this part may contain the word, for this reason.
ALLOWED: Final[dict[str, str]] = {
    "| failed | bury | dead_letter |": "the event type is part of the ledger",
    "retry, bury (dead letter)": "an outcome that callers of SQL pass",
    "lists show the newest first": "an ordinary sentence",
}


def private_words(text: str) -> list[str]:
    """Each private word of the text with its replacement. Code in backquotes is ignored."""
    text = _CODE.sub("", text)
    if any(part in text for part in ALLOWED):
        return []
    return [f"{found.group()!r} (write: {instead})" for rx, instead in _FOUND for found in [rx.search(text)] if found]


# Generated pages: their words come from attacks, names of tests, and comments in SQL.
PENDING: Final = frozenset({"docs/conformance.md", "docs/reference/attacks.md", "docs/reference/sql.md"})
