"""The log of an attempt: its parts, its limits, and references to files on hosts.

``file://host/path`` names a file of a command job. The path has the job's id in it
(``…/<first eight of the id>/<id>/<attempt>/output.log``), so a file that is found there is this job's.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote_from_bytes, unquote_to_bytes

from holdfast.errors import InvalidSetting

LOG_LIMIT: Final = 256 * 1024
"""Bytes of one attempt's lines that are kept, unless HOLDFAST_JOB_LOG_LIMIT says otherwise."""
PART_LIMIT: Final = 64 * 1024
"""Bytes of lines in one part."""
READ_LIMIT: Final = 1024 * 1024
"""Bytes of a log that one read returns."""
FILE: Final = "file://"
_FILE: Final = re.compile(r"file://([^/]*)(/.*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class LogPart:
    """A part of an attempt's log: lines, or the reference of a program's output."""

    job_id: str
    attempt: int
    n: int
    lines: str | None
    ref: str | None = None


@dataclass(frozen=True, slots=True)
class AttemptLog:
    """A piece of an attempt's log. ``offset`` and ``size`` are in bytes: where ``text`` begins, and how long the log is
    now. ``next`` is the offset to continue from. ``ended`` says that the attempt writes no more."""

    job_id: str
    attempt: int
    text: str
    offset: int
    next: int
    size: int
    ended: bool
    ref: str | None = None
    """Where a program's output is; None for the lines of a handler, which are in the database."""

    @property
    def more(self) -> bool:
        """Whether there is more to read at ``next`` now."""
        return self.next < self.size


def log_document(parts: Sequence[LogPart]) -> str:
    """Parts as the SQL function takes them."""
    return json.dumps(
        [
            {"job": part.job_id, "attempt": part.attempt, "n": part.n, "lines": part.lines, "ref": part.ref}
            for part in parts
        ]
    )


def file_ref(host: str, path: bytes) -> str:
    return f"{FILE}{host}{quote_from_bytes(path)}"


def file_of(ref: str) -> tuple[str, bytes] | None:
    """Host and path of a ``file://`` reference."""
    found = _FILE.fullmatch(ref)
    return None if found is None else (found[1], unquote_to_bytes(found[2]))


def piece_of(data: bytes, start: int, *, at_end: bool) -> tuple[int, str]:
    """Where the text of some bytes of a log that begin at ``start`` ends, and the text. A character that is cut off at
    the end is left to the next piece."""
    whole = len(data)
    if not at_end:
        for back in range(1, min(4, whole) + 1):
            byte = data[whole - back]
            if byte & 0xC0 != 0x80:  # the first byte of the last character
                length = 4 if byte >= 0xF0 else 3 if byte >= 0xE0 else 2 if byte >= 0xC0 else 1
                whole -= back if length > back else 0
                break
    return start + whole, data[:whole].decode("utf-8", "replace")


def check_window(offset: object, tail: object) -> None:
    for name, value in (("offset", offset), ("tail", tail)):
        if value is not None and (not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**53):
            raise InvalidSetting(f"{name} must be a number of bytes, 0 or more", code="invalid_setting")
    if offset is not None and tail is not None:
        raise InvalidSetting("pass either an offset or a tail", code="conflicting_options")


def check_attempt(attempt: Any) -> int | None:
    if attempt is None:
        return None
    if not isinstance(attempt, int) or isinstance(attempt, bool) or not 0 <= attempt < 2**31:
        raise InvalidSetting("attempt must be the number of an attempt", code="invalid_setting")
    return attempt
