from __future__ import annotations

from django.contrib import admin
from django.db import transaction
from django.http import HttpRequest, HttpResponse
from django.urls import include, path


def order(request: HttpRequest) -> HttpResponse:
    """A view that only enqueues."""
    from tests.integrations.django.shop.tasks import ship

    return HttpResponse(ship.enqueue(1).id)


urlpatterns = [
    path("admin/", admin.site.urls),
    path("jobs/", include("holdfast.integrations.django.urls")),
    path("order/", order),
    path("order/atomic/", transaction.atomic(order)),
]
