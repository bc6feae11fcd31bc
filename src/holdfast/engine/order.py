"""The order of jobs within a queue, and the order in which a worker claims from its queues.

A queue is ordered by priority (highest first), then position (lowest first), then age. Positions are whole numbers with
gaps: a new job's position is a hundred above the previous one. When a gap is full, the jobs around it are renumbered,
as few of them as necessary.

A worker claims from its queues in the order of its list, or in an order that is drawn by weight for each claim. A
strict order starves the last queues while the first is never empty; with weights every queue gets its share.
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
# The number of jobs on either side of a full gap that are considered first; then twice as many, and so on.
WINDOW: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """The new position of a job: first or last of its priority or of a given one, or next to another job, with that
    job's priority."""

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
        """A move from the options of a caller, checked. A priority alone means the last position of that priority."""
        options = {"first": first, "last": last, "before": before is not None, "after": after is not None}
        given: list[Any] = [where for where, is_given in options.items() if is_given]
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
    """The distance between jobs after this many on either side were renumbered.

    It grows with the window: after a large renumbering, many moves fit before the next one.
    """
    return 2 * (window // WINDOW).bit_length() + 2


HEAVIEST: Final = 1_000
_SMALLEST: Final = 1e-300


def check_weights(weights: Mapping[str, int] | None) -> None:
    for queue, weight in (weights or {}).items():
        # Exactly int: bool is a subclass of it.
        if type(weight) is not int or not 1 <= weight <= HEAVIEST:
            raise InvalidSetting(
                f"the weight of queue {queue!r} must be a whole number from 1 to {HEAVIEST:,}", code="invalid_weight"
            )


def drawn_order(queues: Sequence[str], weights: Mapping[str, int] | None, draw: Callable[[], float]) -> tuple[str, ...]:
    """The queues for one claim. With weights each is first as often as its share of the total weight (default 1).

    Every queue gets a random arrival time with its weight as the rate of an exponential distribution, and the order is
    the order of arrival. So the rest of the order is fair too, which matters if the first queue is empty. ``draw`` is
    the random source, passed in so that this function is pure.
    """
    if not weights:
        return tuple(queues)

    def arrival(queue: str) -> float:
        return -math.log(max(draw(), _SMALLEST)) / weights.get(queue, 1)

    times = {queue: arrival(queue) for queue in queues}
    return tuple(sorted(times, key=times.__getitem__))
