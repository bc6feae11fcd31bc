"""Rounds of two measurements that alternate, so that other load on the machine affects both."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Row:
    """One line of the report. ``ratio`` is ours divided by the floor: 1.0 is as fast as plain SQL without
    guarantees."""

    store: str
    what: str
    floor: float
    ours: float
    unit: str
    ratio: float
    bar: str
    holds: bool


def seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def in_turn(rounds: int, floor: Callable[[], float], ours: Callable[[], float]) -> tuple[float, float]:
    """Return the medians of both. Each callable returns the seconds of the part that counts."""
    pairs = [(floor(), ours()) for _ in range(rounds)]
    return statistics.median(pair[0] for pair in pairs), statistics.median(pair[1] for pair in pairs)


def rate_row(store: str, what: str, count: int, times: tuple[float, float], bar: float) -> Row:
    floor, ours = times
    ratio = floor / ours
    return Row(store, what, count / floor, count / ours, "jobs/s", ratio, f"≥ {bar}", ratio >= bar)
