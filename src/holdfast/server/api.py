"""The HTTP API under ``/api/v1``: the operations of the app as routes, without rules of its own."""

from __future__ import annotations

from fastapi import FastAPI

from holdfast.app import App
from holdfast.features.agents import routes as agents
from holdfast.features.approvals import routes as approvals
from holdfast.features.archives import routes as archives
from holdfast.features.audit import routes as audit
from holdfast.features.connectors import routes as connectors
from holdfast.features.dead_letters import routes as dead_letters
from holdfast.features.events import routes as events
from holdfast.features.health import routes as health
from holdfast.features.jobs import read_routes
from holdfast.features.jobs import routes as jobs
from holdfast.features.limits import routes as limits
from holdfast.features.payloads import routes as payloads
from holdfast.features.registry import routes as registry
from holdfast.features.retention import routes as retention
from holdfast.features.schedules import routes as schedules
from holdfast.features.tenants import routes as tenants
from holdfast.features.tokens import routes as tokens
from holdfast.features.webhooks import routes as webhooks
from holdfast.features.workflows import routes as workflows
from holdfast.server import leases, metrics
from holdfast.server.api_problems import add_fallback, add_problems
from holdfast.server.claims import ClaimBroker
from holdfast.server.maintenance import BackgroundMaintenance
from holdfast.server.openapi import add_document
from holdfast.server.parameters import PREFIX
from holdfast.server.sessions import Tokens

ROUTES = (
    *(
        leases.tick_router,
        jobs.router,
        jobs.operator_router,
        read_routes.router,
        dead_letters.operation_router,
        dead_letters.router,
        approvals.by_token,  # before /approvals/{approval_id}/…
        approvals.router,
        events.router,
        schedules.router,
        schedules.template_router,
        workflows.router,
        limits.queue_router,
    ),
    *(
        agents.router,
        agents.executor_router,
        registry.kind_router,
        registry.event_type_router,
        registry.policy_router,
        limits.router,
        retention.router,
        archives.router,
        payloads.router,
        limits.pause_router,
        events.subscription_router,
        events.consumer_router,
        limits.reservation_router,
        tenants.router,
    ),
    *(
        retention.usage_router,
        health.router,
        audit.router,
        leases.router,
        tokens.router,
        webhooks.router,
        connectors.router,
    ),
)


def add_api(service: FastAPI, app: App) -> None:
    service.state.readiness = health.Readiness(app._store)
    add_problems(service)
    add_document(service)
    service.include_router(health.probes)
    service.include_router(metrics.probes)
    for router in ROUTES:
        service.include_router(router, prefix=PREFIX)
    service.include_router(leases.tick_router, prefix="/api", include_in_schema=False)  # also at /api/jobs/tick
    add_fallback(service)  # last: it matches every remaining path below /api


async def close_background(service: FastAPI) -> None:
    """Finish the background work: maintenance tasks, those started by claims, and the recorded uses of tokens."""
    state = service.state
    for background in (state.maintenance, getattr(state, "broker", None), state.authenticate, state.tokens):
        if isinstance(background, BackgroundMaintenance | ClaimBroker | Tokens):
            await background.aclose()
