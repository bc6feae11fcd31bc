"""Receipts by mail: an unreliable mail server, one receipt per order, many orders in one transaction.

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
from holdfast.worker.worker import WorkerOptions

SOON = holdfast.Backoff(base=0.05, factor=2, cap=1)
NOBODY = "nobody@example.com"


class Mailbox:
    """A stand-in for a mail service that is busy now and then and accepts an idempotency key."""

    def __init__(self) -> None:
        self.sent: dict[str, str] = {}

    def send(self, key: str, to: str, text: str, *, busy: bool) -> None:
        if to == NOBODY:
            raise LookupError(f"there is no mailbox {to}")
        if busy:
            raise ConnectionError("421 try again later")
        self.sent.setdefault(key, f"{to}: {text}")  # repeating a key changes nothing


def make_app(url: str, mailbox: Mailbox) -> tuple[holdfast.App, holdfast.Kind[[str, int], str]]:
    app = holdfast.App(url, name="receipts", tenant="shop")

    @app.job(queue="mail", retry=holdfast.Retry(max_attempts=4, backoff=SOON), timeout="10s")
    async def send_receipt(ctx: holdfast.Context, to: str, order: int) -> str:
        # After a crash this may run again: the key is the same, so the mailbox sends once.
        mailbox.send(ctx.idempotency_key, to, f"receipt for order {order}", busy=order % 5 == 0 and ctx.attempt < 3)
        return f"order {order}: sent at try {ctx.attempt}"

    return app, send_receipt


async def main(url: str | None = None) -> dict[str, int]:
    """Enqueue, work, and return how many receipts ended in which state."""
    if url is None:
        url = os.environ.get("HOLDFAST_URL") or f"sqlite:///{Path(tempfile.mkdtemp())}/receipts.db"
    mailbox = Mailbox()
    app, send_receipt = make_app(url, mailbox)
    try:
        # Twenty orders in one transaction, one receipt each: the key makes a second run harmless.
        handles = await app.aenqueue_many(
            send_receipt.using(key=f"receipt-{order}", tags=["batch"]).prepare(f"customer{order}@example.com", order)
            for order in range(1, 21)
        )
        again = await send_receipt.using(key="receipt-1").aenqueue("customer1@example.com", 1)
        assert again.id == handles[0].id, "one receipt an order"
        try:
            await send_receipt.using(key="receipt-1").aenqueue("mallory@example.com", 1)
        except Conflict as error:
            print(f"refused: {error.code}")
        handles.append(await send_receipt.aenqueue(NOBODY, 99))

        worker = app.worker(WorkerOptions(queues=("mail",), tenant="shop", poll=0.02, promote_every=0.05))
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
