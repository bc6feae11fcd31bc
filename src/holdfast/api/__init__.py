"""The HTTP API under ``/api/v1``: the verbs of the app, as routes. It decides nothing that the app does not."""

from __future__ import annotations

from fastapi import FastAPI

from holdfast.access.tokens import Tokens
from holdfast.api.attending import Attending
from holdfast.api.document import add_document
from holdfast.api.handing_out import HandingOut
from holdfast.api.linking import PREFIX
from holdfast.api.problems import add_problems, add_the_rest
from holdfast.api.routes import (
    acting,
    agents,
    artifacts,
    audit,
    connectors,
    consumers,
    dead_letters,
    endpoints,
    events,
    executors,
    gates,
    health,
    jobs,
    leases,
    limits,
    metrics,
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
    tick,
    tokens,
    usage,
    workflows,
)
from holdfast.app import App

ROUTES = (
    *(tick, jobs, acting, artifacts, operations, dead_letters, gates, events, schedules, templates, workflows, queues),
    *(agents, executors, limits, retention, payload_rules, switches, subscriptions, consumers, reservations, tenants),
    *(usage, health, audit, leases, tokens, endpoints, connectors),
)


def add_api(service: FastAPI, app: App) -> None:
    service.state.readiness = health.Readiness(app.store)
    add_problems(service)
    add_document(service)
    service.include_router(health.probes)
    service.include_router(metrics.probes)
    for routes in ROUTES:
        service.include_router(routes.router, prefix=PREFIX)
    service.include_router(gates.by_token, prefix=PREFIX)
    service.include_router(tick.router, prefix="/api", include_in_schema=False)  # where HK-1 has it
    add_the_rest(service)  # after all others: what comes here is none of ours


async def leave_off(service: FastAPI) -> None:
    """Let what is done beside the answers come to its end: the service's own duties, those that claims have set off,
    and the notes of which tokens were used."""
    state = service.state
    for beside in (state.attending, getattr(state, "handing_out", None), state.authenticate):
        if isinstance(beside, Attending | HandingOut | Tokens):
            await beside.aclose()
