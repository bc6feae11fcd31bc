"""Attempts to log in, slowed: each that fails makes the next from the same address wait longer."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict

FIRST, LONGEST = 0.25, 5.0
FORGOTTEN = 900.0
MOST_ADDRESSES = 10_000
MOST_WAITING = 64


class Attempts:
    """A token cannot be guessed, so this is not what keeps people out; it keeps guessing from costing us anything."""

    def __init__(self, first: float = FIRST) -> None:
        self._first = first
        self._failed: OrderedDict[str, tuple[int, float]] = OrderedDict()
        self._waiting = 0

    async def wait(self, address: str) -> bool:
        """False when too many are waiting already: come back later."""
        failures, at = self._failed.get(address, (0, 0.0))
        if failures == 0 or time.monotonic() - at > FORGOTTEN:
            return True
        if self._waiting >= MOST_WAITING:
            return False
        self._waiting += 1
        try:
            await asyncio.sleep(self.delay(failures))
        finally:
            self._waiting -= 1
        return True

    def delay(self, failures: int) -> float:
        return min(LONGEST, self._first * 2.0 ** min(failures - 1, 16))

    def failed(self, address: str) -> None:
        failures, _ = self._failed.pop(address, (0, 0.0))
        self._failed[address] = (failures + 1, time.monotonic())
        if len(self._failed) > MOST_ADDRESSES:
            self._failed.popitem(last=False)

    def succeeded(self, address: str) -> None:
        self._failed.pop(address, None)
