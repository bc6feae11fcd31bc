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


@app.job("shop.pack")
def pack(order_id: int) -> str:
    seen.append(connection._connections[connection._alias])
    ship.enqueue(order_id)
    return Order.objects.get(pk=order_id).email


@app.job("shop.audit")
async def audit() -> int:
    return await Order.objects.acount()
