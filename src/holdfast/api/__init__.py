"""The HTTP API under ``/api/v1``: the verbs of the app, as routes. It decides nothing that the app does not."""

from __future__ import annotations

from fastapi import FastAPI

from holdfast.api.problems import add_problems
from holdfast.api.routes import health, jobs, leases, tick, tokens
from holdfast.app import App

PREFIX = "/api/v1"


def add_api(service: FastAPI, app: App) -> None:
    add_problems(service)
    service.include_router(health.probes)
    for routes in (tick, jobs, leases, tokens):
        service.include_router(routes.router, prefix=PREFIX)
    service.include_router(tick.router, prefix="/api", include_in_schema=False)  # where HK-1 has it
