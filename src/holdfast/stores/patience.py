"""How long somebody who may have to leave waits for a database: as long as the store waits, until he says otherwise.

A worker that is asked to stop has questions under way, some of them on connections that nothing comes through any more.
So all it does is done under a patience of its own, which it ends when its time is over: what is asked for afterwards
fails at once, and what is being waited for then is given up.
"""

from __future__ import annotations

import asyncio
import math
import time
from contextvars import ContextVar
from typing import Any, Final

LET_GO: Final = 1.0
LOOK: Final = 0.5
"""Seconds; it may be ended earlier than was said when somebody began to wait."""


class Patience:
    """``until`` is a moment of the monotonic clock. It is set by one and read by many, in whatever thread."""

    __slots__ = ("until",)

    def __init__(self) -> None:
        self.until = math.inf

    def left(self) -> float:
        return max(0.0, self.until - time.monotonic())

    async def outlast(self, *tasks: asyncio.Task[Any]) -> None:
        """Until they have ended, or it is over: then they are given a moment to give up by themselves, as those do who
        wait for an answer, and are cancelled, who may wait for a connection that was asked for long ago."""
        waiting = {task for task in tasks if not task.done()}
        while waiting and self.until > time.monotonic() - LET_GO:
            _, waiting = await asyncio.wait(waiting, timeout=min(LOOK, self.left() + LET_GO))
        for task in waiting:
            task.cancel()
        if waiting:
            await asyncio.wait(waiting, timeout=LET_GO)


ENDLESS = Patience()
patience_of: ContextVar[Patience] = ContextVar("holdfast_patience", default=ENDLESS)
