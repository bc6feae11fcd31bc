"""Output streams: the parts in which they are kept, and the chunks that readers get.

A chunk belongs to a *section* of its handler: 2k - 1 is inside durable call k, 2k is the code after it. In branches and
around steps with a name, sections are hashes of their place (odd inside a call), from ``SECTIONS``. A section that runs
again, because a step or an attempt is retried, replaces what it had written; its first new chunk says so.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from holdfast.engine.names import check_name
from holdfast.engine.steps import SECTIONS
from holdfast.errors import InvalidInput

CHUNK_LIMIT: Final = 64 * 1024
"""Bytes of one chunk as JSON."""
PART_LIMIT: Final = 256 * 1024
"""Bytes of the chunks in one part."""
PART_CHUNKS: Final = 10_000
STREAM_LIMIT: Final = 16 * 1024 * 1024
"""Bytes that one attempt may write to its streams."""
COUNT_LIMIT: Final = 500_000
"""Chunks that one attempt may write to its streams."""
KEPT_DAYS: Final = 30
PAGE_BYTES: Final = 1_000_000
PAGE_PARTS: Final = 200
NAME_LIMIT: Final = 90
_CURSOR: Final = re.compile(r"([0-9]{1,9})-([0-9]{1,9})-([0-9]{1,9})")


@dataclass(frozen=True, slots=True)
class StreamPart:
    """Chunks of one section, to be written. ``starts``: it is the first part of a run of its section."""

    job_id: str
    attempt: int
    n: int
    stream: str
    section: int
    starts: bool
    count: int
    chunks: str


@dataclass(frozen=True, slots=True)
class StoredPart:
    attempt: int
    n: int
    section: int
    replaces: bool
    count: int
    chunks: str
    at: datetime


@dataclass(frozen=True, slots=True)
class Chunk:
    """One chunk of a stream. ``id`` is the position to resume after. ``replaces``: forget the earlier chunks of the
    same ``section``, because that part of the handler runs again. ``step`` is the number of the durable call that wrote
    it, None for code between them and in branches."""

    id: str
    data: Any
    section: int
    attempt: int
    replaces: bool
    at: datetime

    @property
    def step(self) -> int | None:
        return (self.section + 1) // 2 if self.section % 2 and self.section < SECTIONS else None


@dataclass(frozen=True, slots=True)
class StreamPage:
    """The next chunks of a stream. ``next`` is the position after them; ``ended``: the job has ended, and there are no
    more."""

    chunks: list[Chunk]
    next: str | None
    ended: bool


def check_stream(name: object) -> str:
    return check_name(name, "stream", limit=NAME_LIMIT)


def position(cursor: str | None) -> tuple[int, int, int]:
    """Attempt, part and chunk of a position."""
    if cursor is None or cursor == "":
        return 0, 0, 0
    match = _CURSOR.fullmatch(str(cursor))
    if match is None:
        raise InvalidInput(f"{str(cursor)[:50]!r} is not a position in a stream", code="invalid_cursor")
    return int(match[1]), int(match[2]), int(match[3])


def chunks_of(part: StoredPart, values: Sequence[Any], after: tuple[int, int, int]) -> list[Chunk]:
    """The chunks of a part after a position. ``values`` are those of all its chunks."""
    skipped = after[2] if (part.attempt, part.n) == after[:2] else 0
    return [
        Chunk(f"{part.attempt}-{part.n}-{i}", value, part.section, part.attempt, part.replaces and i == 1, part.at)
        for i, value in enumerate(values, 1)
        if i > skipped
    ]


def parts_json(parts: Sequence[StreamPart]) -> str:
    """Encode parts as the JSON argument of the SQL function ``append_stream``."""
    return json.dumps(
        [
            {
                "job": part.job_id,
                "attempt": part.attempt,
                "n": part.n,
                "stream": part.stream,
                "section": part.section,
                "starts": part.starts,
                "count": part.count,
                "chunks": part.chunks,
            }
            for part in parts
        ]
    )
