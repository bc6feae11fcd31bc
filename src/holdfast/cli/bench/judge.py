"""From what the database holds in the end to figures and problems. Pure: the times are those of its ledger."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from holdfast.cli.demo.check import Reading
from holdfast.engine.states import State

NAMED = 3


@dataclass(frozen=True, slots=True)
class Rate:
    jobs: int
    seconds: float

    @property
    def per_second(self) -> float:
        return self.jobs / self.seconds if self.seconds > 0 else math.inf


@dataclass(frozen=True, slots=True)
class Latency:
    """Seconds from being enqueued to being begun."""

    jobs: int
    p50: float
    p95: float
    p99: float


def drained(ids: Collection[str], reading: Reading) -> Rate:
    """From the first beginning to the last end: starting the worker's process is not part of it."""
    wanted = set(ids)
    begun = [event.at for event in reading.events if event.job_id in wanted and event.to_state is State.IN_PROGRESS]
    ended = [event.at for event in reading.events if event.job_id in wanted and event.to_state.finished]
    seconds = (max(ended) - min(begun)).total_seconds() if begun and ended else 0.0
    return Rate(len(wanted), seconds)


def picked_up(ids: Sequence[str], reading: Reading) -> Latency:
    wanted = set(ids)
    enqueued = {e.job_id: e.at for e in reading.events if e.job_id in wanted and e.from_state is None}
    waits = [
        (event.at - enqueued[event.job_id]).total_seconds()
        for event in reading.events
        if event.job_id in enqueued and event.to_state is State.IN_PROGRESS and event.attempt == 1
    ]
    return Latency(len(waits), *(percentile(waits, share) for share in (0.50, 0.95, 0.99)))


def percentile(values: Sequence[float], share: float) -> float:
    """The nearest rank: a value that was really measured. Not a number if there is none."""
    if not values:
        return math.nan
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


def problems_of(accepted: Collection[str], reading: Reading) -> list[str]:
    """What does not hold of: each accepted job was begun once and has succeeded, and there is no other."""
    begun: dict[str, int] = defaultdict(int)
    succeeded: dict[str, int] = defaultdict(int)
    for event in reading.events:
        begun[event.job_id] += event.to_state is State.IN_PROGRESS
        succeeded[event.job_id] += event.to_state is State.SUCCEEDED
    jobs = reading.jobs
    wrong = {
        "are not in the database": [each for each in accepted if each not in jobs],
        "have not succeeded": [each for each, job in jobs.items() if job.state is not State.SUCCEEDED],
        "were not begun exactly once": [each for each in jobs if begun[each] != 1],
        "did not succeed exactly once": [each for each in jobs if succeeded[each] != 1],
        "are nobody's": sorted(jobs.keys() - set(accepted)),
    }
    return [f"{len(ids)} jobs {what}: {', '.join(ids[:NAMED])}" for what, ids in wrong.items() if ids]
