"""Tasks and jobs of the tests. ``seen`` records what happened in this process."""

from __future__ import annotations

from typing import Any

import django
from django.db import connection

import holdfast
from holdfast.integrations.django import app as app
from tests.integrations.django.shop.models import Order

if django.VERSION >= (6, 0):
    from django.tasks import TaskContext, task
else:
    from django_tasks import TaskContext, task

seen: list[Any] = []


@task
def ship(order_id: int, *, carrier: str = "post") -> list[str]:
    order = Order.objects.get(pk=order_id)
    Order.objects.filter(pk=order_id).update(state="shipped")
    seen.append(connection._connections[connection._alias])  # the connection of this thread, behind the proxy
    return [order.email, carrier]


@task(takes_context=True, retry=holdfast.Retry(max_attempts=2, backoff=holdfast.Backoff(base=0.001, jitter=False)))
def fail(context: TaskContext) -> None:
    seen.append(context.attempt)
    raise LookupError("no such order")


@task(queue_name="slow", priority=-5)
async def count() -> int:
    return await Order.objects.acount()


@task
@app.schedule("@yearly", payload={"shelf": "A1"})
def restock(shelf: str) -> None:
    seen.append(f"restocked {shelf}")


@app.job("shop.pack")
def pack(order_id: int) -> str:
    seen.append(connection._connections[connection._alias])
    ship.enqueue(order_id)
    return Order.objects.get(pk=order_id).email


@app.job("shop.audit")
async def audit() -> int:
    return await Order.objects.acount()


def charge(order_id: int) -> str:
    return Order.objects.get(pk=order_id).email


def deliver(order_id: int) -> None:
    Order.objects.filter(pk=order_id).update(state="shipped")


async def weigh(order_id: int) -> int:
    return order_id


@app.job("shop.fulfil", queue="orders")
def fulfil(ctx: holdfast.SyncContext, order_id: int) -> str:
    email = ctx.step("charge", charge, order_id)
    ctx.approval("ship", summary=f"Ship order {order_id}?")
    ctx.step("ship", deliver, order_id)
    return email


@app.job("shop.stocktake")
def stocktake(ctx: holdfast.SyncContext, order_id: int) -> list[object]:
    """Every way in which a sync handler waits for the worker's loop."""
    steps = [ctx.submit(name, charge, order_id) for name in "ab"]
    return [
        *ctx.gather(*steps),
        ctx.step("weigh", weigh, order_id),
        ctx.step_options(timeout=30).step("limited", charge, order_id),
        ctx.patched("second count"),
    ]
