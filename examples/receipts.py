"""Receipts by mail: an unreliable mail server, one receipt per order, and many jobs in one transaction.

    python examples/receipts.py                                   # on a new SQLite file
    HOLDFAST_URL=postgresql://… python examples/receipts.py       # on a migrated database

It prints how the receipts ended and the ledger of one that needed several attempts.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from pathlib import Path

import holdfast
from holdfast.errors import Conflict

QUICK = holdfast.Backoff(base=0.05, factor=2, cap=1)
UNKNOWN = "unknown@example.com"


class Mailbox:
    """Stands in for a mail service that is sometimes busy and accepts an idempotency key."""

    def __init__(self) -> None:
        self.sent: dict[str, str] = {}

    def send(self, key: str, to: str, text: str, *, busy: bool) -> None:
        if to == UNKNOWN:
            raise LookupError(f"no mailbox {to}")
        if busy:
            raise ConnectionError("421 try again later")
        self.sent.setdefault(key, f"{to}: {text}")  # a second mail with the same key is ignored


def make_app(url: str, mailbox: Mailbox) -> tuple[holdfast.App, holdfast.Kind[[str, int], str]]:
    app = holdfast.App(url, name="receipts", tenant="shop")

    @app.job(queue="mail", retry=holdfast.Retry(max_attempts=4, backoff=QUICK), timeout="10s")
    async def send_receipt(ctx: holdfast.Context, to: str, order: int) -> str:
        # After a crash this runs again, with the same key: the mail service sends the mail once.
        mailbox.send(ctx.idempotency_key, to, f"receipt for order {order}", busy=order % 5 == 0 and ctx.attempt < 3)
        return f"order {order}: sent in attempt {ctx.attempt}"

    return app, send_receipt


async def main(url: str | None = None) -> dict[str, int]:
    """Enqueue and run the jobs; return the number of receipts per state."""
    if url is None:
        url = os.environ.get("HOLDFAST_URL") or f"sqlite:///{Path(tempfile.mkdtemp())}/receipts.db"
    mailbox = Mailbox()
    app, send_receipt = make_app(url, mailbox)
    try:
        # Twenty jobs in one transaction. The key allows one receipt per order, even if this code runs again.
        handles = await app.aenqueue_many(
            send_receipt.using(key=f"receipt-{order}", tags=["batch"]).prepare(f"customer{order}@example.com", order)
            for order in range(1, 21)
        )
        again = await send_receipt.using(key="receipt-1").aenqueue("customer1@example.com", 1)
        assert again.id == handles[0].id, "the key returns the first job"
        try:
            await send_receipt.using(key="receipt-1").aenqueue("mallory@example.com", 1)
        except Conflict as error:
            print(f"refused: {error.code}")
        handles.append(await send_receipt.aenqueue(UNKNOWN, 99))

        worker = app.worker(queues=("mail",), tenant="shop", poll=0.02, promote_every=0.05)
        working = asyncio.create_task(worker.run())
        ends = [await handle.await_end(timeout="60s") for handle in handles]
        worker.stop()
        await working

        print(await handles[4])
        for event in await handles[4].ahistory():
            print(f"  {event.name:<12} {event.from_state or '':>13} -> {event.to_state}")
        counts: dict[str, int] = {}
        for job in ends:
            counts[job.state] = counts.get(job.state, 0) + 1
        print(f"{len(mailbox.sent)} receipts sent; {counts}")
        return counts
    finally:
        await app.aclose()


if __name__ == "__main__":
    asyncio.run(main())
