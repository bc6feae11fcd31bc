"""Sealing the ledger on the side (HF-4): any worker does it, and none for longer than its share of the time."""

from __future__ import annotations

import time
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version

from holdfast.stores.base import Store

BLOCK = 2000  # events in a block: ten milliseconds of hashing
SHARE = 0.04  # of the time between two looks; what is left waits for the next
AT_ONCE = 0.25  # seconds, for whoever looks once and goes


async def seal(store: Store, every: float) -> int:
    """Seal what there is, as far as the share goes. It is nothing that a worker would wake up for, hence no count."""
    until = time.monotonic() + (SHARE * every or AT_ONCE)
    while await store.arun(store.verbs.seal_ledger(release(), BLOCK)) >= BLOCK and time.monotonic() < until:
        pass
    return 0


@lru_cache
def release() -> str:
    try:
        return version("holdfast")
    except PackageNotFoundError:  # run from its source
        return "unknown"
