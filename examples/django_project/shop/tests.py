"""Run: python manage.py test"""

from django.test import TestCase

from holdfast.integrations.django.test import HoldfastMixin
from shop.models import Order
from shop.tasks import remind, send_receipt


class OrderTests(HoldfastMixin, TestCase):
    def test_an_order_sends_a_receipt(self) -> None:
        self.client.post("/orders/", {"email": "a@b.c", "total": "9.50"})
        order = Order.objects.get()
        self.assert_enqueued(send_receipt, order.pk)
        self.assert_enqueued(remind, order.pk)
        self.run_jobs()
        order.refresh_from_db()
        self.assertTrue(order.receipt_sent)
        self.assertFalse(order.reminded)  # it is due tomorrow
