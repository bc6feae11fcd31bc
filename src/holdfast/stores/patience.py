"""How long somebody who may have to leave waits for a database: as long as the store waits, until he says otherwise.

A worker that is asked to stop has questions under way, some of them on connections that nothing comes through any more.
So all it does is done under a patience of its own, which it ends when its time is over: what is asked for afterwards
fails at once, and what is being waited for then is given up.
"""

from __future__ import annotations

import math
import time
from contextvars import ContextVar


class Patience:
    """``until`` is a moment of the monotonic clock. It is set by one and read by many, in whatever thread."""

    __slots__ = ("until",)

    def __init__(self) -> None:
        self.until = math.inf

    def left(self) -> float:
        return max(0.0, self.until - time.monotonic())


ENDLESS = Patience()
patience_of: ContextVar[Patience] = ContextVar("holdfast_patience", default=ENDLESS)
