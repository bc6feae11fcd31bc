"""A worker's lease and the thread that keeps it alive.

The heartbeat is a thread of its own, so that a handler that blocks the event loop does not cost the worker
its jobs; a process that is gone stops beating. One renewal serves every job of the process.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextvars import copy_context
from dataclasses import replace
from functools import partial

from holdfast.errors import StoreUnavailable
from holdfast.runtime.stalls import LoopWatch
from holdfast.stores.base import Store
from holdfast.stores.patience import patience_of

log = logging.getLogger("holdfast.worker")

BEATS_PER_LEASE = 3


class Heartbeat:
    """Renews until stopped; calls ``lost`` once when the store says that the lease has ended."""

    def __init__(self, store: Store, lease: str, ttl: float, tenant: str, lost: Callable[[], None]) -> None:
        """To be made on the loop that the lease is for."""
        self._store = store
        self._lease = lease
        self._ttl = ttl
        self._tenant = tenant
        self._lost = lost
        self._stop = threading.Event()
        self._watch = LoopWatch(min(1.0, ttl / BEATS_PER_LEASE / 4))
        beat = partial(copy_context().run, self._beat)
        self._thread = threading.Thread(target=beat, name="holdfast-heartbeat", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def end(self) -> None:
        """No other beat begins."""
        self._stop.set()

    def stop(self) -> None:
        """A beat that waits for an answer is not waited for: nothing depends on it any more."""
        self.end()
        self._thread.join(timeout=min(self._ttl, patience_of.get().left()))

    def _beat(self) -> None:
        pause = self._ttl / BEATS_PER_LEASE
        while not self._stop.wait(pause):
            started = time.monotonic()
            self._watch.look()
            try:
                renewal = self._store.verbs.renew_lease(self._lease, self._ttl, self._tenant)
                # An answer that comes after the lease has run out is of no use.
                kept = self._store.run(replace(renewal, patience=self._ttl))
            except Exception as error:
                # Not knowing is not losing: the lease may outlive the outage. The next beat comes sooner.
                if isinstance(error, StoreUnavailable):
                    self._store.outage.failed(error)
                else:
                    log.warning("heartbeat failed: %s", error)
                pause = self._ttl / BEATS_PER_LEASE / 4
                continue
            if self._stop.is_set():
                return
            if not kept:
                self._lost()
                return
            pause = max(0.0, self._ttl / BEATS_PER_LEASE - (time.monotonic() - started))
