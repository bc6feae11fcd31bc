"""In which order a worker looks at its queues: as they are listed, or drawn by weight anew for each claim.

A strict order starves what comes last while the first is never empty; weights share the claims out, and no
queue with a weight waits for ever. The draw is the caller's, so that this stays a function.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from holdfast.domain.errors import InvalidSetting

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
