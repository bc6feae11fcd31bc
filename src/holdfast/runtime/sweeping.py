"""The duty of retention: count what was used, then clean and purge what is due, a slice at a time.

Each slice is one short transaction, so a worker may die between any two. Between them it rests nineteen times as long
as the last one took: however much there is to remove, it has a twentieth of one connection, and the jobs have the
rest. So has the counting: behind a very busy hour it comes later, and what is not counted yet is not purged yet.
"""

from __future__ import annotations

import asyncio
import logging
import time

from holdfast.stores.base import Store

log = logging.getLogger("holdfast.worker")

SLICES, PAGES = 20, 50
"""Of one run; the next comes with the next sweep."""
WANT, LOOK, PAGE = 200, 2000, 2000
REST = 19.0
LONGEST_REST = 2.0


async def sweep(store: Store, *, tenant: str, slices: int = SLICES) -> int:
    """Nothing of it is a reason to look for jobs, so it answers 0. Mostly these are two looks at two small tables."""
    pages = PAGES if slices > 1 else 1
    await _count(store, pages)
    for left in range(slices, 0, -1):
        began = time.monotonic()
        swept = await store.arun(store.verbs.sweep_retention(WANT, LOOK, tenant))
        if swept.held_by is not None and swept.held_by.startswith(("consumer", "subscription")):
            log.warning("%s jobs are past their retention, and %s has not read their ledger", swept.held, swept.held_by)
        if swept.verb == "idle" or left == 1:
            break
        if swept.looked:
            await asyncio.sleep(min(LONGEST_REST, REST * (time.monotonic() - began)))
    return 0


async def _count(store: Store, pages: int) -> None:
    for left in range(pages, 0, -1):
        began = time.monotonic()
        if await store.arun(store.verbs.count_usage(PAGE)) < PAGE or left == 1:
            return
        await asyncio.sleep(min(LONGEST_REST, REST * (time.monotonic() - began)))
