"""A shop to look at: orders come in by themselves, and the dashboard shows what becomes of them.

    holdfast dev examples/dev_shop.py        # then open the address that it prints

Every few seconds an order is taken. Each makes a receipt (which is sent), a picture (which takes a while and says how
far it is), a payment (which fails now and then, and sometimes for good) and, when it is large, a question to people
under Approvals. Change this file while it runs: the worker and the pages start anew.
"""

from __future__ import annotations

import asyncio
import random

import holdfast
from holdfast import Context

app = holdfast.App(name="dev_shop")  # holdfast dev names the database


@app.schedule("every 5s", overlap="skip")
@app.job()
def take_orders() -> int:
    """Two orders at a time; the number of the last one is the result."""
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
    """Large payments wait for somebody; the bank is away one time in four, and refuses some cards for good."""
    if amount > 450:
        await ctx.approval("large", summary=f"Charge {amount:.2f} for order {order}?", expires_in="1h")
    if random.random() < 0.25:
        raise ConnectionError("the bank does not answer")
    if amount < 30:
        raise holdfast.Reject("card_refused", f"the card for order {order} was refused")
    return f"{amount:.2f} charged"
