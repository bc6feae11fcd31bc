"""Watches the event loop of a worker from its heartbeat thread, and finds out where it is blocked."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
import threading
import time

from holdfast.telemetry.tracebacks import location_of, stack_of

log = logging.getLogger("holdfast.worker")


class LoopWatch:
    """Logs when the event loop is blocked. Created on the loop's thread and checked by the heartbeat thread every few
    seconds: a callback that was scheduled at one check should have run long before the next."""

    def __init__(self, timeout: float, blocked_after: float = 30.0) -> None:
        """``timeout``: seconds that the loop may need after the whole process was suspended. ``blocked_after``: seconds
        after which a blocked loop is an error."""
        self.every = blocked_after / 4
        """Seconds between two checks, at most."""
        self._timeout, self._blocked_after = timeout, blocked_after
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._scheduled_at = time.monotonic()
        self._responded = threading.Event()
        self._responded.set()
        self._logged = False
        self._failed = False

    def check(self) -> float | None:
        """Return for how many seconds the loop has not turned, if that is an error; None otherwise."""
        if self._responded.wait(self._timeout):
            if self._failed:
                log.warning("The event loop turns again, after %.1f s", time.monotonic() - self._scheduled_at)
            self._logged = self._failed = False
            self._responded.clear()
            self._scheduled_at = time.monotonic()
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._responded.set)
            return None
        blocked = time.monotonic() - self._scheduled_at
        if blocked >= self._blocked_after and not self._failed:
            stack = stack_of(sys._current_frames().get(self._thread))
            log.error(
                "The event loop has not turned for %.0f s, so no job of this worker proceeds. It is blocked at:\n%s",
                *(blocked, stack),
            )
            self._logged = self._failed = True
        elif not self._logged:
            location = self.location()
            log.warning(
                "The event loop was blocked for %.1f s, and with it every job of this worker%s",
                *(blocked, "" if location is None else f": it is blocked at {location}"),
            )
            self._logged = True
        return blocked if self._failed else None

    def location(self) -> str | None:
        """Where in the code the loop's thread is now."""
        return location_of(sys._current_frames().get(self._thread))
