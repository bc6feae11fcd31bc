"""Queue order: ``Move``, positions, priorities, weighted queue order.

Where a waiting job is to stand in its queue, and how places are found (SC-2, SC-3).

The order of a queue is priority, the highest first, then position, the lowest first, then age. Positions are whole
numbers with gaps: a new job's is a hundred above the one before. Where a gap is full, the jobs around it are numbered
anew, as few of them as make room.

In which order a worker looks at its queues: as they are listed, or drawn by weight anew for each claim.

A strict order starves what comes last while the first is never empty; weights share the claims out, and no
queue with a weight waits for ever. The draw is the caller's, so that this stays a function.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from holdfast.engine.ids import parse_id
from holdfast.errors import InvalidSetting

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
            raise InvalidSetting("pass only one of first, last, before and after", code="conflicting_options")
        if not given and priority is None:
            raise InvalidSetting("pass first, last, before, after or a priority", code="no_place")
        other = before if before is not None else after
        if other is not None and priority is not None:
            raise InvalidSetting(
                "before and after take the other job's priority; do not pass one", code="conflicting_options"
            )
        return cls(
            where=given[0] if given else "last",
            other=None if other is None else parse_id(other),
            priority=None if priority is None else check_priority(priority),
        )


def check_priority(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not -32_768 <= value <= 32_767:
        raise InvalidSetting("priority must be a whole number from -32768 to 32767", code="invalid_priority")
    return value


def needed(window: int) -> int:
    """How far apart jobs must come to stand when so many on either side are numbered anew.

    More where there are more: whoever has numbered many then has many moves before them until it is their turn again.
    """
    return 2 * (window // WINDOW).bit_length() + 2


HEAVIEST: Final = 1_000
_SMALLEST: Final = 1e-300


def check_weights(weights: Mapping[str, int] | None) -> None:
    for queue, weight in (weights or {}).items():
        # Exactly int: a bool, or a number out of JSON, would be taken for one.
        if type(weight) is not int or not 1 <= weight <= HEAVIEST:
            raise InvalidSetting(
                f"the weight of queue {queue!r} must be a whole number from 1 to {HEAVIEST:,}", code="invalid_weight"
            )


def drawn_order(queues: Sequence[str], weights: Mapping[str, int] | None, draw: Callable[[], float]) -> tuple[str, ...]:
    """The queues for one claim. With weights each comes first as often as its share of the weight (1 if it has none).

    A race: every queue is given an exponential time of arrival with its weight as the rate, and the order is the
    order of arrival. So the rest of the order is fair too, which matters when the first queue is empty.
    """
    if not weights:
        return tuple(queues)

    def arrival(queue: str) -> float:
        return -math.log(max(draw(), _SMALLEST)) / weights.get(queue, 1)

    times = {queue: arrival(queue) for queue in queues}
    return tuple(sorted(times, key=times.__getitem__))
