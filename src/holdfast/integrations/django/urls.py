"""URLs of the dashboard: ``path("jobs/", include("holdfast.integrations.django.urls"))``. It uses Django's login."""

from __future__ import annotations

from django.urls import path

from holdfast.integrations.django.dashboard_view import dashboard

app_name = "holdfast"
urlpatterns = [path("", dashboard, name="dashboard"), path("<path:path>", dashboard, name="page")]
