"""A bank is down for a while: the failures form one group with a note, and are redriven at a limited rate later.

    python examples/dead_letters.py                                   # on a new SQLite file
    HOLDFAST_URL=postgresql://… python examples/dead_letters.py       # on a migrated database

It prints the groups, the result of the bulk operation, and how one wrong payment is redriven with another payload.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from pathlib import Path

import holdfast
from holdfast.worker.worker import WorkerOptions


async def main(url: str | None = None) -> dict[str, int]:
    """Fail, inspect, fix; return how many jobs ended in which state."""
    if url is None:
        url = os.environ.get("HOLDFAST_URL") or f"sqlite:///{Path(tempfile.mkdtemp())}/payments.db"
    app = holdfast.App(url, name="payments")
    bank = {"up": False}

    @app.job(retry=holdfast.Retry(max_attempts=1))
    async def pay(order: int, amount: int) -> str:
        if amount <= 0:
            raise holdfast.Reject("amount", f"order {order}: {amount} is no amount")
        if not bank["up"]:
            raise ConnectionError(f"order {order}: the bank does not answer")
        return f"paid {amount}"

    async def work_off() -> None:
        await app.worker(WorkerOptions(burst=True)).run()

    try:
        for order in range(20):
            await pay.aenqueue(order, 10 * order)
        await work_off()
        for group in await app.dead_letters.agroups(order="count"):
            print(f"{group.open} x {group.error_code} in {group.frame}, last: {group.error_message}")
        down, wrong = await app.dead_letters.agroups(order="count")
        await app.dead_letters.anote(down.fingerprint, "the bank is down until noon")

        bank["up"] = True
        operation = await app.dead_letters.aredrive(down.fingerprint, rate=100, reason="the bank is back")
        over = await app.operations.arun(operation.id)
        print(f"{over.action}: {over.done} of {over.total}, {over.refused} refused")

        (job,) = await app.dead_letters.ajobs(wrong.fingerprint)
        new = await app.dead_letters.aredrive_as(job.id, {"order": 0, "amount": 5}, reason="it was 5")
        await work_off()
        made = await app.jobs.aget(new)
        print(f"order 0 is {made.state} in the place of a job that was discarded")
        print(f"{len(await app.dead_letters.agroups())} groups are open")
        counts: dict[str, int] = {}
        for each in await app.jobs.alist(limit=100):
            counts[each.state] = counts.get(each.state, 0) + 1
        return counts
    finally:
        await app.aclose()


if __name__ == "__main__":
    asyncio.run(main())
