"""The dashboard: pages that work without JavaScript, and update live with it.

Each feature has its pages in ``pages.py``, with ``routes`` that need one scope each. Pages read and act through
the same operations as the HTTP API.
"""

from __future__ import annotations

from starlette.applications import Starlette
from starlette.routing import Match, Mount
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

from holdfast.app import App
from holdfast.features.agents import pages as agents
from holdfast.features.approvals import pages as approvals
from holdfast.features.audit import pages as audit
from holdfast.features.connectors import pages as connectors
from holdfast.features.dead_letters import pages as dead_letters
from holdfast.features.events import pages as events
from holdfast.features.health import pages as health
from holdfast.features.jobs import job_page
from holdfast.features.jobs import pages as jobs
from holdfast.features.limits import pages as limits
from holdfast.features.payloads import pages as payloads
from holdfast.features.registry import pages as registry
from holdfast.features.retention import pages as retention
from holdfast.features.schedules import pages as schedules
from holdfast.features.tenants import pages as tenants
from holdfast.features.tokens import pages as tokens
from holdfast.features.webhooks import pages as webhooks
from holdfast.features.workers import pages as workers
from holdfast.features.workflows import pages as workflows
from holdfast.server import pages as server
from holdfast.server import sessions
from holdfast.server.auth import Paths, path_below
from holdfast.server.pages import failures
from holdfast.server.rendering import STATIC, Renderer

PAGES = (
    *(
        health.overview_routes,
        jobs.routes,
        job_page.routes,
        dead_letters.operation_routes,
        server.routes,
        sessions.theme_routes,
        sessions.routes,
    ),
    *(
        approvals.routes,
        approvals.link_routes,
        dead_letters.routes,
        workflows.routes,
        schedules.routes,
        limits.routes,
        workers.routes,
        agents.routes,
        connectors.routes,
        events.routes,
        payloads.routes,
        registry.routes,
        retention.routes,
        tenants.routes,
        audit.routes,
        health.routes,
        tokens.routes,
        webhooks.routes,
    ),
)


class DashboardMount(Mount):
    """A mount at ``/`` that excludes some paths, so that it can be matched before the many routes of the API."""

    def __init__(self, dashboard: Starlette, *, excluded: Paths) -> None:
        super().__init__("/", dashboard)
        self._excluded = excluded

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        if path_below(scope) in self._excluded:
            return Match.NONE, {}
        return super().matches(scope)


def make_dashboard(app: App) -> Starlette:
    routes = [route for page in PAGES for route in page]
    pages = Starlette(routes=[*routes, Mount("/static", StaticFiles(directory=STATIC))], exception_handlers=failures())
    pages.state.app = app
    pages.state.renderer = Renderer(app)
    return pages
