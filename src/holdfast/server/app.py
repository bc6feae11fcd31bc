"""The service: the HTTP API and the dashboard of an app, as one ASGI application to run or to mount.

``holdfast serve`` runs it; ``other.mount("/jobs", make_service(app, authenticate=…))`` mounts it in another
application.

The dashboard has pages that work without JavaScript, and update live with it. Each feature has its pages in
``pages.py``, with ``routes`` that need one scope each. Pages read and act through the same operations as the HTTP API.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
import random
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.routing import Match, Mount
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

from holdfast.app import App
from holdfast.app.internals import maintenance_tasks, ready_redactor, session_of, sync_declarations
from holdfast.errors import Refused, StoreUnavailable
from holdfast.features.agents import pages as agents
from holdfast.features.approvals import pages as approvals
from holdfast.features.audit import pages as audit
from holdfast.features.connectors import pages as connectors
from holdfast.features.dead_letters import pages as dead_letters
from holdfast.features.events import pages as events
from holdfast.features.health import pages as health
from holdfast.features.jobs import job_page
from holdfast.features.jobs import pages as jobs
from holdfast.features.jobs.routes import FastEnqueue
from holdfast.features.limits import pages as limits
from holdfast.features.payloads import pages as payloads
from holdfast.features.registry import pages as registry
from holdfast.features.retention import pages as retention
from holdfast.features.schedules import pages as schedules
from holdfast.features.tenants import pages as tenants
from holdfast.features.tokens import pages as tokens
from holdfast.features.versions import pages as versions
from holdfast.features.webhooks import pages as webhooks
from holdfast.features.workers import pages as workers
from holdfast.features.workflows import pages as workflows
from holdfast.server import pages as server
from holdfast.server import sessions
from holdfast.server.api import add_api
from holdfast.server.auth import Authenticate, AuthMiddleware, Paths, path_below
from holdfast.server.claims import ClaimBroker
from holdfast.server.live import LedgerFeed
from holdfast.server.metrics import observe_queues
from holdfast.server.middleware import (
    TIMEOUT,
    BodyLimit,
    BoundedReads,
    HeadRequests,
    Measure,
    PageHeaders,
    ReadableCookies,
    RequestLog,
)
from holdfast.server.pages import failures
from holdfast.server.rendering import STATIC, Renderer
from holdfast.server.sessions import Tokens, tokens_of
from holdfast.stores.flow import NO_LIMIT, WaitLimit, wait_limit_of
from holdfast.worker.maintenance import Maintenance
from holdfast.worker.options import WorkerOptions
from holdfast.worker.startup import when_reachable

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
        versions.routes,
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


log = logging.getLogger("holdfast.service")

CONNECT_TIMEOUT = 3.0
"""Seconds that the start waits for the database."""
RETRY_EVERY = 1.0
"""Seconds between attempts to start maintenance."""
SHUTDOWN_TIMEOUT = 5.0
"""Seconds that background work may take when the service ends."""
API = Paths(frozenset({"/api/", "/livez", "/readyz", "/metrics"}))
# Paths without authentication: probes, files, the login page, and links that carry a token.
OPEN = Paths(frozenset({"/livez", "/readyz", "/static/", "/login", "/decide/", "/api/v1/approvals/by-token/"}))


def make_service(
    app: App,
    *,
    authenticate: Authenticate,
    dashboard: bool = True,
    maintenance: str | None = None,
    body_timeout: float = TIMEOUT,
) -> FastAPI:
    """Make the ASGI application. ``authenticate`` identifies the caller (``tokens_of(app)``, ``at_this_machine(app)``
    or your own). ``maintenance`` is the tenant (``*``: every) whose maintenance tasks the service runs; None leaves
    them to workers. ``body_timeout`` is the number of seconds that a request body may take; a large one has more, by
    its size."""
    session = session_of(app)
    measures: list[Measure] = []
    tokens = None if isinstance(authenticate, Tokens) else tokens_of(app)

    live = LedgerFeed(session)
    wait_limit = WaitLimit()  # for background work; ``holdfast serve`` also applies it to requests
    background = None if maintenance is None else BackgroundMaintenance(app, maintenance, wait_limit)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        connecting = asyncio.create_task(when_reachable(session.make_ready, session.store))
        with contextlib.suppress(TimeoutError):
            # Wait no longer: an application that mounts the service also starts without its database.
            async with asyncio.timeout(CONNECT_TIMEOUT):
                await asyncio.shield(connecting)
        ready_redactor(app)
        observe_queues(app)
        if background is not None:
            background.begin()
        yield
        connecting.cancel()
        wait_limit.until = min(wait_limit.until, time.monotonic() + SHUTDOWN_TIMEOUT)
        await live.aclose()
        await close_background(service)
        await session.store.leave_loop()

    service = FastAPI(
        title="Holdfast",
        version="1",
        openapi_url="/api/v1/openapi.json",
        docs_url=None,
        redoc_url=None,
        generate_unique_id_function=lambda route: route.name,
        lifespan=lifespan,
        middleware=[
            Middleware(ReadableCookies),
            Middleware(HeadRequests),
            Middleware(RequestLog, measures),
            Middleware(PageHeaders),
            Middleware(BodyLimit, open_to_all=OPEN, timeout=body_timeout),
            Middleware(
                AuthMiddleware,
                session,
                authenticate,
                open_to_all=OPEN,
                login="/login" if dashboard else None,
                tokens=tokens,
            ),
            Middleware(FastEnqueue),
            Middleware(BoundedReads),
            # Level 9, the default, takes three times as long and saves 5 % more.
            Middleware(GZipMiddleware, minimum_size=1_000, compresslevel=4),
        ],
    )
    service.state.app, service.state.live, service.state.maintenance = app, live, background
    service.state.stopping = asyncio.Event()  # requests that wait return when this is set
    service.state.wait_limit = wait_limit
    service.state.measures = measures
    service.state.authenticate, service.state.tokens = authenticate, tokens
    add_api(service, app)
    if dashboard:
        pages = make_dashboard(app)
        pages.state.live = live
        pages.state.authenticate = authenticate  # the login page opens sessions with it, if it is ``Tokens``
        service.router.routes.insert(0, DashboardMount(pages, excluded=API))
    return service


async def close_background(service: FastAPI) -> None:
    """Finish the background work: maintenance tasks, those started by claims, and the recorded uses of tokens."""
    state = service.state
    for background in (state.maintenance, getattr(state, "broker", None), state.authenticate, state.tokens):
        if isinstance(background, BackgroundMaintenance | ClaimBroker | Tokens):
            await background.aclose()


class BackgroundMaintenance:
    """Runs the maintenance tasks for ``tenant`` at the intervals of a worker, from ``begin`` to ``aclose``: schedules
    fire, expired leases are ended and the ledger is sealed even if all workers are of other languages, or none is
    running. Like every maintenance task, these are correct with any number of servers and workers at once."""

    def __init__(self, app: App, tenant: str, wait_limit: WaitLimit = NO_LIMIT) -> None:
        self._app, self.tenant, self._wait_limit = app, tenant, wait_limit
        self._stopping = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def begin(self) -> None:
        # A new context: no request caused this, so the ledger must not name a caller.
        self._task = asyncio.get_running_loop().create_task(self._run(), context=contextvars.Context())

    async def aclose(self) -> None:
        """Stop without cancelling: a statement under way completes, unless the database does not respond within the
        wait limit."""
        self._stopping.set()
        if self._task is not None:
            await self._wait_limit.wait_for(self._task)

    async def _run(self) -> None:
        wait_limit_of.set(self._wait_limit)
        if not await self._is_allowed():
            return
        options = WorkerOptions(tenant=self.tenant)
        own = maintenance_tasks(self._app, self.tenant, options.promote_every, options.sweep_every)
        tasks = replace(options, extra_tasks=own).maintenance_tasks()
        # Nothing in this process waits for promoted jobs: the store notifies the workers.
        await Maintenance(session_of(self._app).store, tasks, self.tenant).run(self._stopping)

    async def _is_allowed(self) -> bool:
        """Whether the database role may run maintenance; logged once if not. Waits while the database is
        unreachable."""
        store = session_of(self._app).store
        while not self._stopping.is_set():
            try:
                await store.arun(store.leases.promote(1, self.tenant))
                await asyncio.to_thread(sync_declarations, self._app, self.tenant)
                return True
            except Refused as error:
                log.warning("Maintenance tasks are left to workers: %s", error)
                return False
            except StoreUnavailable as error:
                store.outage.failed(error)
            except Exception as error:
                log.warning("Maintenance cannot start, retrying: %s", error)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(RETRY_EVERY * random.uniform(0.8, 1.2)):
                    await self._stopping.wait()
        return False
