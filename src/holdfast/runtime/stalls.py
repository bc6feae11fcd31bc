"""Says when the event loop stands still, and where. A handler that blocks it holds up every other job of its worker,
whose heartbeat, a thread, goes on as if all were well."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
import threading
import time

from holdfast.runtime.failures import place_of

log = logging.getLogger("holdfast.worker")


class LoopWatch:
    """Made on the loop's own thread; looks in the thread of the heartbeat, once a beat. What was asked at one beat
    should have been answered long before the next."""

    def __init__(self, patience: float) -> None:
        """After a pause of the whole process the loop may need a moment: ``patience``."""
        self._patience = patience
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._asked = time.monotonic()
        self._answered = threading.Event()
        self._answered.set()

    def look(self) -> None:
        if not self._answered.wait(self._patience):
            place = place_of(sys._current_frames().get(self._thread))
            log.warning(
                "the event loop has stood still for %.1f s, and every job of this worker with it%s",
                time.monotonic() - self._asked,
                "" if place is None else f": it is blocked at {place}",
            )
            return
        self._answered.clear()
        self._asked = time.monotonic()
        with contextlib.suppress(RuntimeError):  # it is closed: nothing runs any more
            self._loop.call_soon_threadsafe(self._answered.set)
