"""The duty of bulk operations: do the batches that are due, a little at a time, so that a worker can be stopped."""

from __future__ import annotations

import asyncio
import time

from holdfast.stores.base import Store

SPELL = 0.4
"""For how many seconds at a time; the other duties on this connection have their turn in between."""


async def work_off(store: Store, *, tenant: str) -> int:
    """Answers how many jobs it was. Mostly there is no operation, and this is one look at an empty table."""
    total, until = 0, time.monotonic() + SPELL
    while True:
        wait = await store.arun(store.verbs.next_operation(tenant))
        if wait is None or time.monotonic() + wait > until:
            return total
        if wait > 0:
            await asyncio.sleep(wait)
        # None: somebody else has it, or has just done the batch.
        done = await store.arun(store.verbs.work_operation(tenant))
        if done is None:
            return total
        total += done
