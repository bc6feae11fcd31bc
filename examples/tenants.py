"""Three tenants: one with a large backlog, one with twice the weight, one with a limit on waiting jobs.

    python examples/tenants.py                                   # on a new SQLite file
    HOLDFAST_URL=postgresql://… python examples/tenants.py       # on a migrated database

It prints the shares of the tenants, a refusal, and whose jobs started first.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from pathlib import Path

import holdfast
from holdfast.errors import Refused


async def main(url: str | None = None) -> list[str]:
    """Enqueue and run the jobs; return the tenants in the order in which their jobs started."""
    if url is None:
        url = os.environ.get("HOLDFAST_URL") or f"sqlite:///{Path(tempfile.mkdtemp())}/tenants.db"
    app = holdfast.App(url, name="reports")
    started: list[str] = []

    @app.job(queue="reports")
    async def report(ctx: holdfast.Context, month: int) -> None:
        started.append(ctx.tenant)
        # In a handler, reads and enqueues are for the tenant of the job.
        assert {job.tenant for job in await app.jobs.alist(limit=5)} == {ctx.tenant}

    try:
        await app.tenants.aset("premium", weight=2)  # setting a weight turns on fair shares
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
        await app.worker(queues=("reports",), concurrency=4, burst=True).run()
        print("started first: " + ", ".join(started[:12]))
        return started
    finally:
        await app.aclose()


if __name__ == "__main__":
    asyncio.run(main())
