"""Events that create jobs, retries as new jobs, and `why` for a job that does not run.

    python examples/warehouse.py                                   # on a new SQLite file
    HOLDFAST_URL=postgresql://… python examples/warehouse.py       # on a migrated database

A payment creates a job that packs the order. Its success creates a job that prints a label; the printer jams twice.
Another job waits in a queue that no worker serves.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from pathlib import Path
from typing import Any

import holdfast

QUICK_RETRY = holdfast.Retry(max_attempts=4, backoff=holdfast.Backoff(base=0.05, factor=1, cap=0.05))


def make_app(url: str) -> holdfast.App:
    app = holdfast.App(url, name="warehouse", tenant="shop")
    jams = [1, 2]

    # Each payment from France creates exactly one job, even across crashes.
    @app.on("order.paid", match={"country": "fr"}, payload={"order": "$.data.order"}, name="pack paid orders")
    @app.job
    async def pack(order: int) -> str:
        return f"order {order} is packed"

    # Events of jobs create jobs too. With retry_as="new_job" a failed job stays as it is, and each retry is a new job.
    @app.on("job.succeeded", kind="pack", name="label what was packed")
    @app.job(retry=QUICK_RETRY, retry_as="new_job")
    async def label(event: dict[str, Any]) -> str:
        if jams:
            raise RuntimeError(f"the printer is jammed ({jams.pop()} to go)")
        return f"a label for {event['job_id']}"

    return app


async def main(url: str | None = None) -> dict[str, int]:
    """Send events, run the jobs, and return the number of jobs per kind."""
    if url is None:
        url = os.environ.get("HOLDFAST_URL") or f"sqlite:///{Path(tempfile.mkdtemp())}/warehouse.db"
    app = make_app(url)
    try:
        worker = app.worker(tenant="shop", poll=0.02, promote_every=0.03)  # stores the subscriptions
        await app.asend_event("order.paid", {"order": 7, "country": "fr"}, key="payment-7")
        await app.asend_event("order.paid", {"order": 7, "country": "fr"}, key="payment-7")  # sent twice, stored once
        await app.asend_event("order.paid", {"order": 8, "country": "de"})
        working = asyncio.create_task(worker.run())
        for _ in range(1000):
            if await app.jobs.alist(kind="label", state=holdfast.State.SUCCEEDED):
                break
            await asyncio.sleep(0.02)

        waiting = await app.aenqueue("pack", {"order": 9}, queue="moon")
        for reason in (await app.jobs.awhy(waiting.id)).reasons:
            print(f"order 9: {reason.says}")
        worker.stop()
        await working
        return await asyncio.to_thread(report, app)
    finally:
        await app.aclose()


def report(app: holdfast.App) -> dict[str, int]:
    labels = app.jobs.list(kind="label")
    for number, job in enumerate(app.jobs.chain(labels[0].id), 1):
        print(f"label, attempt {number}: {job.state} {job.error_message or ''}".rstrip())
    for subscription in app.subscriptions.list():
        print(f"{subscription.name}: {subscription.made} jobs created")
    return {"pack": len(app.jobs.list(kind="pack")), "label": len(labels)}


if __name__ == "__main__":
    asyncio.run(main())
