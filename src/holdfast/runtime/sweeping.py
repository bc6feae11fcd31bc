"""The duty of retention: count what was used, then clean and purge what is due, a slice at a time.

Each slice is one short transaction, so a worker may die between any two. Between them it rests nine times as long as
the last one took: however much there is to remove, it has a tenth of one connection, and the jobs have the rest.
"""

from __future__ import annotations

import asyncio
import logging
import time

from holdfast.stores.base import Store

log = logging.getLogger("holdfast.worker")

SLICES = 20
"""Of one run; the next comes with the next sweep."""
WANT, LOOK, PAGE = 200, 2000, 2000
REST = 9.0
LONGEST_REST = 2.0


async def sweep(store: Store, *, tenant: str, slices: int = SLICES) -> int:
    """Nothing of it is a reason to look for jobs, so it answers 0. Mostly these are two looks at two small tables."""
    for left in range(slices, 0, -1):
        began = time.monotonic()
        counted = await store.arun(store.verbs.count_usage(PAGE))
        swept = await store.arun(store.verbs.sweep_retention(WANT, LOOK, tenant))
        if swept.held_by is not None and swept.held_by.startswith(("consumer", "subscription")):
            log.warning("%s jobs are past their retention, and %s has not read their ledger", swept.held, swept.held_by)
        if (swept.verb == "idle" and counted < PAGE) or left == 1:
            break
        await asyncio.sleep(min(LONGEST_REST, REST * (time.monotonic() - began)))
    return 0
