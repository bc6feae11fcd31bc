"""``kit.crash_at``: a worker that is lost at a chosen point of a job, and what comes after it.

The attempt comes as far as that point and no further. Its lease is ended, as it would be for a process that was
killed, so nothing that the handler still tries is written; the reaper counts a crash, and the job is begun again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from holdfast.engine.job import EVERY_TENANT, Claim
from holdfast.errors import InvalidSetting
from holdfast.stores.base import Store

Moment = Literal["before", "after", "saved"]
MOMENTS = ("before", "after", "saved")


@dataclass(frozen=True, slots=True)
class Point:
    step: str
    when: Moment


class Crashes:
    """Points that wait to be reached, each once."""

    def __init__(self) -> None:
        self.waiting: list[Point] = []
        self.happened: list[Point] = []
        self.abandon: Callable[[], None] | None = None
        """Ends the tick that is under way, without a word to the store."""

    def arm(self, step: str, when: Moment) -> None:
        if when not in MOMENTS:
            raise InvalidSetting(f"a crash is {', '.join(MOMENTS)}, not {when!r}", code="invalid_setting")
        self.waiting.append(Point(step, when))

    async def reached(self, store: Store, claim: Claim, when: Moment, step: str) -> None:
        point = Point(step, when)
        if point not in self.waiting:
            return
        self.waiting.remove(point)
        self.happened.append(point)
        await store.arun(store.verbs.end_lease(claim.lease, "crashed by a test", EVERY_TENANT))
        if self.abandon is not None:
            self.abandon()
        await asyncio.Event().wait()  # as far as it comes
