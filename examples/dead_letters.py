"""A bank is down: the failed jobs form one group, which is redriven at a limited rate when the bank is back.

    python examples/dead_letters.py                                   # on a new SQLite file
    HOLDFAST_URL=postgresql://… python examples/dead_letters.py       # on a migrated database

It prints the groups of dead letters and the bulk operation. One job is redriven with another payload.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from pathlib import Path

import holdfast


async def main(url: str | None = None) -> dict[str, int]:
    """Let jobs fail, inspect and redrive them; return the number of jobs per state."""
    if url is None:
        url = os.environ.get("HOLDFAST_URL") or f"sqlite:///{Path(tempfile.mkdtemp())}/payments.db"
    app = holdfast.App(url, name="payments")
    bank = {"up": False}

    @app.job(retry=holdfast.Retry(max_attempts=1))
    async def pay(order: int, amount: int) -> str:
        if amount <= 0:
            raise holdfast.Reject("amount", f"order {order}: {amount} is not a valid amount")
        if not bank["up"]:
            raise ConnectionError(f"order {order}: the bank does not respond")
        return f"paid {amount}"

    async def run_jobs() -> None:
        await app.worker(burst=True).run()

    try:
        for order in range(20):
            await pay.aenqueue(order, 10 * order)
        await run_jobs()
        for group in await app.dead_letters.agroups(order="count"):
            print(f"{group.open} x {group.error_code} in {group.frame}, last: {group.error_message}")
        down, wrong = await app.dead_letters.agroups(order="count")
        await app.dead_letters.anote(down.fingerprint, "the bank is down until noon")

        bank["up"] = True
        operation = await app.dead_letters.aredrive(down.fingerprint, rate=100, reason="the bank is back")
        operation = await app.operations.arun(operation.id)
        print(f"{operation.action}: {operation.done} of {operation.total}, {operation.refused} refused")

        (job,) = await app.dead_letters.ajobs(wrong.fingerprint)
        new_id = await app.dead_letters.aredrive_as(job.id, {"order": 0, "amount": 5}, reason="the amount is 5")
        await run_jobs()
        replacement = await app.jobs.aget(new_id)
        print(f"order 0: the new job is {replacement.state}, the old one was discarded")
        print(f"{len(await app.dead_letters.agroups())} groups are open")
        counts: dict[str, int] = {}
        for job in await app.jobs.alist(limit=100):
            counts[job.state] = counts.get(job.state, 0) + 1
        return counts
    finally:
        await app.aclose()


if __name__ == "__main__":
    asyncio.run(main())
