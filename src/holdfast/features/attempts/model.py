"""The log of an attempt: its parts, its limits, and references to files on hosts.

``file://host/path`` names a file of a command job. The path contains the job's id
(``…/<first eight characters of the id>/<id>/<attempt>/output.log``), so the file belongs to this job.
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
"""Bytes of log lines stored per attempt, unless HOLDFAST_JOB_LOG_LIMIT sets another limit."""
PART_LIMIT: Final = 64 * 1024
"""Bytes of lines in one part."""
READ_LIMIT: Final = 1024 * 1024
"""Bytes of a log that one read returns."""
FILE_SCHEME: Final = "file://"
_FILE: Final = re.compile(r"file://([^/]*)(/.*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class LogPart:
    """A part of an attempt's log: lines, or a reference to a program's output file."""

    job_id: str
    attempt: int
    n: int
    lines: str | None
    ref: str | None = None


@dataclass(frozen=True, slots=True)
class AttemptLog:
    """A piece of an attempt's log. ``offset`` is the byte at which ``text`` begins, ``size`` the current length of the
    log in bytes, and ``next`` the offset to continue from. ``ended``: the attempt has ended and writes no more."""

    job_id: str
    attempt: int
    text: str
    offset: int
    next: int
    size: int
    ended: bool
    ref: str | None = None
    """Reference to the file of a program's output; None for a handler's lines, which are in the database."""

    @property
    def more(self) -> bool:
        """Whether there is more to read at ``next`` now."""
        return self.next < self.size


def log_parts_json(parts: Sequence[LogPart]) -> str:
    """Encode parts as the JSON argument of the SQL function ``append_log``."""
    return json.dumps(
        [
            {"job": part.job_id, "attempt": part.attempt, "n": part.n, "lines": part.lines, "ref": part.ref}
            for part in parts
        ]
    )


def file_ref(host: str, path: bytes) -> str:
    return f"{FILE_SCHEME}{host}{quote_from_bytes(path)}"


def parse_file_ref(ref: str) -> tuple[str, bytes] | None:
    """Host and path of a ``file://`` reference, or None for any other reference."""
    match = _FILE.fullmatch(ref)
    return None if match is None else (match[1], unquote_to_bytes(match[2]))


def decode_log(data: bytes, start: int, *, at_end: bool) -> tuple[int, str]:
    """Decode bytes of a log that begin at offset ``start``. Returns the offset at which the text ends, and the text. A
    character that is cut off at the end belongs to the next piece."""
    size = len(data)
    if not at_end:
        for back in range(1, min(4, size) + 1):
            byte = data[size - back]
            if byte & 0xC0 != 0x80:  # the first byte of the last character
                length = 4 if byte >= 0xF0 else 3 if byte >= 0xE0 else 2 if byte >= 0xC0 else 1
                size -= back if length > back else 0
                break
    return start + size, data[:size].decode("utf-8", "replace")


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
