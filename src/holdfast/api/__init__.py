"""The HTTP API under ``/api/v1``: the verbs of the app, as routes. It decides nothing that the app does not."""

from __future__ import annotations

from fastapi import FastAPI

from holdfast.api.linking import PREFIX
from holdfast.api.problems import add_problems
from holdfast.api.routes import acting, artifacts, events, health, jobs
from holdfast.app import App


def add_api(service: FastAPI, app: App) -> None:
    add_problems(service)
    service.include_router(health.probes)
    for routes in (jobs, acting, artifacts, events):
        service.include_router(routes.router, prefix=PREFIX)
