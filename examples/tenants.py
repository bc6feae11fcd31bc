"""A report service with three tenants: one with a large backlog, one with twice the weight, one with a quota.

    python examples/tenants.py                                   # on a new SQLite file
    HOLDFAST_URL=postgresql://… python examples/tenants.py       # on a migrated database

It prints whose reports started first, and what was refused.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from pathlib import Path

import holdfast
from holdfast.errors import Refused
from holdfast.worker.worker import WorkerOptions


async def main(url: str | None = None) -> list[str]:
    """Enqueue, work, and return the tenants in the order in which their jobs started."""
    if url is None:
        url = os.environ.get("HOLDFAST_URL") or f"sqlite:///{Path(tempfile.mkdtemp())}/tenants.db"
    app = holdfast.App(url, name="reports")
    made: list[str] = []

    @app.job(queue="reports")
    async def report(ctx: holdfast.Context, month: int) -> None:
        made.append(ctx.tenant)
        # Reads and enqueues here belong to the job's tenant.
        assert {job.tenant for job in await app.jobs.alist(limit=5)} == {ctx.tenant}

    try:
        await app.tenants.aset("premium", weight=2)  # the first weight turns on fair sharing
        await app.tenants.aset("trial", max_pending=3)
        with app.tenant("huge"):
            await app.aenqueue_many(report.prepare(month) for month in range(60))
        for name in ("premium", "trial"):
            with app.tenant(name):
                for month in range(6):
                    try:
                        await report.aenqueue(month)
                    except Refused as refusal:
                        print(refusal)
                        break
        for tenant in await app.tenants.alist():
            print(f"{tenant.name}: {tenant.pending} waiting, {tenant.share:.0%} of the work")
        await app.worker(WorkerOptions(queues=("reports",), concurrency=4, burst=True)).run()
        print("begun first: " + ", ".join(made[:12]))
        return made
    finally:
        await app.aclose()


if __name__ == "__main__":
    asyncio.run(main())
