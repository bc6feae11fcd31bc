"""The dashboard: pages rendered here, which read and act without JavaScript and are livelier with it.

One file a screen under ``pages``; each has ``routes`` and asks for one scope a route. What a page shows comes from
``holdfast.insights`` and the features of the app; what it does, it does through the same verbs as the API.
"""

from __future__ import annotations

from starlette.applications import Starlette
from starlette.routing import Match, Mount
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

from holdfast.access.gate import Paths, path_below
from holdfast.app import App
from holdfast.dashboard.failing import failures
from holdfast.dashboard.pages import (
    approvals,
    audit,
    dead_letters,
    decide,
    endpoints,
    job,
    jobs,
    live,
    login,
    operations,
    overview,
    queues,
    schedules,
    system,
    tenants,
    theme,
    tokens,
    workflows,
)
from holdfast.dashboard.rendering import STATIC, Renderer

PAGES = (
    *(overview, jobs, job, operations, live, theme, login),
    *(approvals, decide, dead_letters, workflows, schedules, queues, tenants, audit, system, tokens, endpoints),
)


class Below(Mount):
    """All but some paths: so that it can be asked before the many routes that those have."""

    def __init__(self, dashboard: Starlette, *, but: Paths) -> None:
        super().__init__("/", dashboard)
        self._but = but

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        if path_below(scope) in self._but:
            return Match.NONE, {}
        return super().matches(scope)


def make_dashboard(app: App) -> Starlette:
    routes = [route for page in PAGES for route in page.routes]
    pages = Starlette(routes=[*routes, Mount("/static", StaticFiles(directory=STATIC))], exception_handlers=failures())
    pages.state.app = app
    pages.state.renderer = Renderer(app)
    return pages
