from django.db import transaction
from django.http import HttpRequest, JsonResponse
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_POST

from shop.models import Order
from shop.tasks import remind, send_receipt


@csrf_exempt
@require_POST
@transaction.atomic
def place_order(request: HttpRequest) -> JsonResponse:
    """Create an order and its two jobs, which are committed together or not at all."""
    order = Order.objects.create(email=request.POST["email"], total=request.POST["total"])
    receipt = send_receipt.enqueue(order.pk)
    remind.using(delay="1d").enqueue(order.pk)
    return JsonResponse({"order": order.pk, "receipt": receipt.id})
