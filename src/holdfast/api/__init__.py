"""The HTTP API under ``/api/v1``: the verbs of the app, as routes. It decides nothing that the app does not."""

from __future__ import annotations

from fastapi import FastAPI

from holdfast.api.problems import add_problems
from holdfast.api.routes import health, jobs, metrics
from holdfast.app import App

PREFIX = "/api/v1"


def add_api(service: FastAPI, app: App) -> None:
    add_problems(service)
    service.include_router(health.probes)
    service.include_router(metrics.probes)
    for routes in (jobs,):
        service.include_router(routes.router, prefix=PREFIX)
