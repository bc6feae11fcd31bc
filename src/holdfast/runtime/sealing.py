"""Sealing the ledger on the side (HF-4): any worker does it, and none for longer than its share of the time."""

from __future__ import annotations

import time
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version

from holdfast.stores.base import Store

BLOCK = 2000  # events in a block: ten milliseconds of hashing
SHARE = 0.04  # of a worker's time; what is left over waits
AT_ONCE = 0.25  # seconds, for whoever looks once and goes


class Sealing:
    """What a worker does between two looks: a block at least, then as many as its share allows. If that took
    longer, because the machine is busy or looks are close together, it rests for as long as makes good for it."""

    def __init__(self, every: float) -> None:
        self._share = SHARE * every or AT_ONCE
        self._rest_until = 0.0

    async def __call__(self, store: Store) -> int:
        """It is nothing that a worker would wake up for, hence no count."""
        began = time.monotonic()
        if began < self._rest_until:
            return 0
        while await store.arun(store.verbs.seal_ledger(release(), BLOCK)) >= BLOCK:
            if time.monotonic() - began > self._share:
                break
        self._rest_until = began + (time.monotonic() - began) / SHARE
        return 0


@lru_cache
def release() -> str:
    try:
        return version("holdfast")
    except PackageNotFoundError:  # run from its source
        return "unknown"
