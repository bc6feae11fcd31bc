"""A worker's lease and the thread that keeps it alive.

The heartbeat is a thread of its own, so that a handler that blocks the event loop does not cost the worker
its jobs; a process that is gone stops beating. One renewal serves every job of the process.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import replace

from holdfast.domain.errors import HoldfastError
from holdfast.stores.base import Store

log = logging.getLogger("holdfast.worker")

BEATS_PER_LEASE = 3


class Heartbeat:
    """Renews until stopped; calls ``lost`` once when the store says that the lease has ended."""

    def __init__(self, store: Store, lease: str, ttl: float, tenant: str, lost: Callable[[], None]) -> None:
        self._store = store
        self._lease = lease
        self._ttl = ttl
        self._tenant = tenant
        self._lost = lost
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="holdfast-heartbeat", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(timeout=self._ttl)

    def _beat(self) -> None:
        pause = self._ttl / BEATS_PER_LEASE
        while not self._stop.wait(pause):
            started = time.monotonic()
            try:
                renewal = self._store.verbs.renew_lease(self._lease, self._ttl, self._tenant)
                # An answer that comes after the lease has run out is of no use.
                kept = self._store.run(replace(renewal, patience=self._ttl))
            except HoldfastError as error:
                # Not knowing is not losing: the lease may outlive the outage. The next beat comes sooner.
                log.warning("heartbeat failed: %s", error)
                pause = self._ttl / BEATS_PER_LEASE / 4
                continue
            if not kept:
                self._lost()
                return
            pause = max(0.0, self._ttl / BEATS_PER_LEASE - (time.monotonic() - started))
