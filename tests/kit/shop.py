"""The program under test. Its own database cannot be opened, so any access to it fails."""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import holdfast
from holdfast import App, Backoff, Context, Reject, Retry, RetryLater, SyncContext
from holdfast.app.internals import session_of

OWN_URL = "sqlite:////no/such/folder/production.db"

app = App(OWN_URL, name="shop", enqueued_by="tester")

SLOWLY = Retry(max_attempts=3, backoff=Backoff(base=60, factor=2, cap=3600))
AT_ONCE = Retry(max_attempts=3, backoff=Backoff(base=0, jitter=False))


class CardDeclined(Exception):
    def __init__(self, order: int) -> None:
        super().__init__(order)
        self.order = order

    def __str__(self) -> str:
        return f"order {self.order} was declined"


@dataclass
class Invoice:
    number: int
    at: datetime


@app.job(queue="mail")
def send_receipt(to: str, order: int) -> str:
    return f"receipt {order} for {to}"


@app.job()
async def place_order(order: int, to: str = "ada@example.com") -> None:
    """Enqueue two jobs: one in another queue, one for tomorrow."""
    await send_receipt.aenqueue(to, order)
    remind.using(delay="1d", tags=["later"], key=f"order-{order}").enqueue(order)


@app.job()
def remind(ctx: SyncContext, order: int) -> str:
    running = holdfast.current()
    assert running is not None
    return f"{running.job_id == ctx.job_id} {ctx.parent_id is not None}"


@app.job(retry=SLOWLY)
def charge(order: int) -> None:
    raise CardDeclined(order)


@app.job(retry=AT_ONCE)
async def second_time_lucky(ctx: Context) -> int:
    if ctx.attempt == 1:
        raise ConnectionError("the line is busy")
    return ctx.attempt


@app.job()
def refuse() -> None:
    raise Reject("not_today", "come back tomorrow")


@app.job()
async def retry_later() -> None:
    raise RetryLater(after="10m", message="the bank is busy")


@app.job()
def snooze(ctx: SyncContext, seconds: float) -> int:
    if ctx.attempt == 1:
        ctx.snooze(seconds, "the file is not there yet")
    return ctx.attempt


@app.job()
def for_ever() -> None:
    for_ever.enqueue()


@app.job()
def exits() -> None:
    raise SystemExit(3)


@app.job()
async def hang(seconds: float = 600.0) -> None:
    await asyncio.sleep(seconds)


@app.job(timeout=0.05)
async def too_slow() -> None:
    await asyncio.sleep(600)


@app.job()
def bill(invoice: Invoice, tags: list[str], queue: str = "none") -> Invoice:
    return Invoice(invoice.number + 1, invoice.at.astimezone(UTC))


@app.job()
async def wait_for_receipt(order: int) -> str:
    return await (await send_receipt.aenqueue("bob@example.com", order))


@app.job(process=True)
def in_child(order: int) -> dict[str, Any]:
    """Run in a child process, which imports this module again: the app must use the kit's database there too."""
    handle = send_receipt.enqueue("eve@example.com", order)
    return {"pid": os.getpid(), "receipt": handle.id, "url": session_of(app).store.url}


def _plain(order: int) -> str:
    """The job is declared separately, so that nothing leads from this function to the app."""
    return app.enqueue("send_receipt", {"to": "plain@example.com", "order": order}).id


plainly = app.job("plainly", process=True)(_plain)


@app.job(process=True)
def fails_in_child(ctx: SyncContext, how: str) -> None:
    if how == "snooze":
        ctx.snooze(60, "not yet")
    raise CardDeclined(7)
