from django.contrib import admin
from django.urls import include, path

from shop import views

urlpatterns = [
    path("admin/", admin.site.urls),
    path("jobs/", include("holdfast.integrations.django.urls")),  # Holdfast: the dashboard
    path("orders/", views.place_order, name="place_order"),
]
