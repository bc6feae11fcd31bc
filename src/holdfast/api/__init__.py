"""The HTTP API under ``/api/v1``: the verbs of the app, as routes. It decides nothing that the app does not."""

from __future__ import annotations

from fastapi import FastAPI

from holdfast.api.linking import PREFIX
from holdfast.api.problems import add_problems
from holdfast.api.routes import (
    acting,
    agents,
    artifacts,
    audit,
    consumers,
    dead_letters,
    events,
    executors,
    gates,
    health,
    jobs,
    limits,
    operations,
    payload_rules,
    queues,
    reservations,
    retention,
    schedules,
    subscriptions,
    switches,
    templates,
    tenants,
    usage,
    workflows,
)
from holdfast.app import App

ROUTES = (
    *(jobs, acting, artifacts, operations, dead_letters, gates, events, schedules, templates, workflows, queues),
    *(agents, executors, limits, retention, payload_rules, switches, subscriptions, consumers, reservations, tenants),
    *(usage, health, audit),
)


def add_api(service: FastAPI, app: App) -> None:
    add_problems(service)
    service.include_router(health.probes)
    for routes in ROUTES:
        service.include_router(routes.router, prefix=PREFIX)
    service.include_router(gates.by_token, prefix=PREFIX)
