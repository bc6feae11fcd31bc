"""A Django task and a native Holdfast job."""

import django

if django.VERSION >= (6, 0):
    from django.tasks import task
else:
    from django_tasks import task

import holdfast
from holdfast.integrations.django import app
from shop.models import Order


@task(retry=holdfast.Retry(max_attempts=5), timeout=30)
def send_receipt(order_id: int) -> str:
    order = Order.objects.get(pk=order_id)
    order.receipt_sent = True
    order.save()
    return order.email


@app.job(queue="reminders")
def remind(ctx: holdfast.SyncContext, order_id: int) -> None:
    ctx.step("mark", Order.objects.filter(pk=order_id).update, reminded=True)
