"""Logs an outage of the database: one line when it begins, one when it is over.

Everything that fails because the database cannot be used reports it here, from any thread: pools that cannot connect,
workers, heartbeats, maintenance. A connection that was lost and replaced at once is not an outage.
"""

from __future__ import annotations

import logging
import random
import time
from typing import Final

from holdfast.stores.locks import fork_safe_lock

log = logging.getLogger("holdfast.store")

LASTING: Final = 0.5
"""Seconds after the first failure. The next failure begins an outage, unless something succeeded in between."""

FIRST_PAUSE, LONGEST_PAUSE = 0.05, 0.5
"""Seconds to wait after the second failure in a row, doubling up to the longest."""


def pause_after(failures: int) -> float:
    """Seconds to wait before the next attempt, after this many failures in a row. One lost connection says nothing
    about the server, so there is no pause after the first failure; later pauses have jitter."""
    if failures < 2:
        return 0.0
    return min(LONGEST_PAUSE, FIRST_PAUSE * 2.0 ** min(failures - 2, 10)) * random.uniform(0.5, 1.0)


class Outage:
    """The state of one store's database: available, or failing since a time."""

    def __init__(self) -> None:
        self._guard = fork_safe_lock()
        self._since: float | None = None
        self._logged = False
        self.reason = ""
        """Why the last use failed; empty while the database is available."""
        self.connecting = ""
        """Why the last attempt to connect failed; empty after one that succeeded."""

    def failed(self, error: Exception) -> None:
        # Errors of operations repeat why there was no connection, and would be repeated by the next.
        now, said = time.monotonic(), str(error).strip().split("\n")[0]
        reason = self.connecting or said or type(error).__name__
        with self._guard:
            self.reason = reason
            if self._since is None:
                self._since = now
            begins = not self._logged and now - self._since >= LASTING
            self._logged = self._logged or begins
        if begins:
            log.warning("Database unavailable, retrying: %s", reason)
        else:
            log.debug("Database unavailable: %s", reason)

    def answered(self) -> None:
        """Record that the database responded. Called after every exchange of a worker, so the common case is cheap."""
        if self._since is None:
            return
        with self._guard:
            began, logged = self._since, self._logged
            self._since, self._logged, self.reason, self.connecting = None, False, "", ""
        if logged and began:
            log.warning("Database available again after %.1f s", time.monotonic() - began)
