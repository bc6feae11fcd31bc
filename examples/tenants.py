"""A report service with three customers: one has very much to do, one pays for more, one has a cap.

    python examples/tenants.py                                   # on a new SQLite file
    HOLDFAST_URL=postgresql://… python examples/tenants.py       # on a database that was migrated

It prints whose reports were begun first, and what was refused.
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
    """Enqueue, work, and answer for whom, in the order in which it was begun."""
    if url is None:
        url = os.environ.get("HOLDFAST_URL") or f"sqlite:///{Path(tempfile.mkdtemp())}/tenants.db"
    app = holdfast.App(url, name="reports")
    made: list[str] = []

    @app.job(queue="reports")
    async def report(ctx: holdfast.Context, month: int) -> None:
        made.append(ctx.tenant)
        # Whatever is read or enqueued here is of the job's own tenant.
        assert {job.tenant for job in await app.jobs.alist(limit=5)} == {ctx.tenant}

    try:
        await app.tenants.aset("premium", weight=2)  # the first weight has queues shared
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
