"""A sample shop for the dashboard: orders arrive continuously.

    holdfast dev examples/dev_shop.py        # then open the printed address

Every five seconds there are two orders. Each order creates jobs for a receipt, a label (slow, with progress) and a
payment, which sometimes fails, sometimes permanently, and needs an approval if it is large. Edit this file while it
runs: the worker and the pages restart.
"""

from __future__ import annotations

import asyncio
import random

import holdfast
from holdfast import Context

app = holdfast.App(name="dev_shop")  # holdfast dev sets HOLDFAST_URL


@app.schedule("every 5s", overlap="skip")
@app.job
def take_orders() -> int:
    """Create two orders and return the number of the last one."""
    number = 0
    for _ in range(2):
        number = random.randrange(1_000, 10_000)
        send_receipt.enqueue(number)
        draw_label.enqueue(number)
        charge.enqueue(number, round(random.uniform(5, 500), 2))
    return number


@app.job(tags=["mail"])
async def send_receipt(order: int) -> str:
    await asyncio.sleep(0.2)
    return f"sent for order {order}"


@app.job(timeout="1m")
async def draw_label(ctx: Context, order: int) -> str:
    for done in range(1, 6):
        await asyncio.sleep(0.4)
        await ctx.progress(done / 5, f"line {done} of 5")
    return f"label-{order}.png"


@app.job(retry=holdfast.Retry(max_attempts=3, backoff=holdfast.Backoff(base=1, cap=5)))
async def charge(ctx: Context, order: int, amount: float) -> str:
    """Charge a card. Large payments need an approval; one in four fails; small ones are declined permanently."""
    if amount > 450:
        await ctx.approval("large", summary=f"Charge {amount:.2f} for order {order}?", expires_in="1h")
    if random.random() < 0.25:
        raise ConnectionError("the bank does not respond")
    if amount < 30:
        raise holdfast.Reject("card_refused", f"the card for order {order} was declined")
    return f"{amount:.2f} charged"
