"""How a worker leaves though its store may be away: what it still asks for is waited for so long, and no longer."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Iterator
from contextlib import contextmanager

from holdfast.stores.patience import Patience, patience_of

# What a store that is there needs to settle what has ended and to end a lease, on a busy machine as well.
LAST_CALL = 5.0
# A store gives up by itself when its time is over; what it cannot give up is cancelled so much later.
LET_GO = 1.0


class Parting:
    """One for a worker. Nothing is hurried before ``begin``, nor when the worker has left."""

    def __init__(self) -> None:
        self._patience = Patience()
        self._end: float | None = None
        self._cuts: set[asyncio.Timeout] = set()

    @contextmanager
    def kept(self) -> Iterator[None]:
        """What is asked of a store in the block, and by whatever is started there, is asked with this patience."""
        before = patience_of.set(self._patience)
        try:
            yield
        finally:
            patience_of.reset(before)
            self._patience.until = math.inf  # something that a handler has started may go on without the worker

    def begin(self, seconds: float) -> None:
        """In so many seconds the last call begins. What is said last counts."""
        self._end_in(seconds + LAST_CALL)

    def hasten(self, *, away: bool) -> None:
        """Nothing is left but to say goodbye, to a store that may be known to be away."""
        longest = LET_GO if away else LAST_CALL
        if self._patience.left() > longest:
            self._end_in(longest)

    def _end_in(self, seconds: float) -> None:
        self._patience.until = time.monotonic() + seconds
        self._end = asyncio.get_running_loop().time() + seconds + LET_GO
        for cut in self._cuts:
            if not cut.expired():
                cut.reschedule(self._end)

    async def wait_for(self, work: Awaitable[object]) -> bool:
        """Answers whether it came to its end: when the time is over it is cancelled."""
        cut = asyncio.timeout_at(self._end)
        try:
            async with cut:
                self._cuts.add(cut)
                await work
        except TimeoutError:
            if not cut.expired():
                raise
            return False
        finally:
            self._cuts.discard(cut)
        return True
