"""Where a waiting job is to stand in its queue, and how places are found (SC-2, SC-3).

The order of a queue is priority, the highest first, then position, the lowest first, then age. Positions are whole
numbers with gaps: a new job's is a hundred above the one before. Where a gap is full, the jobs around it are numbered
anew, as few of them as make room.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal

from holdfast.domain.errors import InvalidSetting
from holdfast.domain.ids import parse_id

Where = Literal["first", "last", "before", "after"]

GAP: Final = 100
# The jobs on either side of a full gap that are looked at first; then twice as many, and so on.
WINDOW: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """First or last of its priority, which may be another one; or next to a job, in that one's priority."""

    where: Where
    other: str | None = None
    priority: int | None = None

    @classmethod
    def of(
        cls,
        first: bool = False,
        last: bool = False,
        before: object | None = None,
        after: object | None = None,
        priority: int | None = None,
    ) -> Move:
        """As people say it, checked. A priority alone means last among those that have it."""
        places = {"first": first, "last": last, "before": before is not None, "after": after is not None}
        given: list[Any] = [where for where, wanted in places.items() if wanted]
        if len(given) > 1:
            raise InvalidSetting("give one place: first, last, before or after", code="conflicting_options")
        if not given and priority is None:
            raise InvalidSetting("where to? Give first, last, before, after or a priority", code="no_place")
        other = before if before is not None else after
        if other is not None and priority is not None:
            raise InvalidSetting("next to another job it has that one's priority", code="conflicting_options")
        return cls(
            where=given[0] if given else "last",
            other=None if other is None else parse_id(other),
            priority=None if priority is None else check_priority(priority),
        )


def check_priority(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not -32_768 <= value <= 32_767:
        raise InvalidSetting("priority is a whole number from -32768 to 32767", code="invalid_priority")
    return value


def needed(window: int) -> int:
    """How far apart jobs must come to stand when so many on either side are numbered anew.

    More where there are more: whoever has numbered many then has many moves before them until it is their turn again.
    """
    return 2 * (window // WINDOW).bit_length() + 2
