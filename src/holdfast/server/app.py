"""The service: the HTTP API and the dashboard of an app, as one ASGI application to run or to mount.

``holdfast serve`` runs it; ``other.mount("/jobs", make_service(app, authenticate=…))`` mounts it in another
application.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware

from holdfast.app import App
from holdfast.features.jobs.routes import FastEnqueue
from holdfast.server.api import add_api, close_background
from holdfast.server.auth import Authenticate, AuthMiddleware, Paths
from holdfast.server.dashboard import DashboardMount, make_dashboard
from holdfast.server.live import LedgerFeed
from holdfast.server.maintenance import BackgroundMaintenance
from holdfast.server.metrics import observe_queues
from holdfast.server.middleware import TIMEOUT, BodyLimit, BoundedReads, HeadRequests, PageHeaders, ReadableCookies
from holdfast.server.request_log import Measure, RequestLog
from holdfast.server.sessions import Tokens, tokens_of
from holdfast.stores.flow import WaitLimit
from holdfast.worker.startup import when_reachable

CONNECT_TIMEOUT = 3.0
"""Seconds that the start waits for the database."""
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
    measures: list[Measure] = []
    tokens = None if isinstance(authenticate, Tokens) else tokens_of(app)

    live = LedgerFeed(app._session)
    patience = WaitLimit()  # for background work; ``holdfast serve`` also applies it to requests
    background = None if maintenance is None else BackgroundMaintenance(app, maintenance, patience)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        connecting = asyncio.create_task(when_reachable(app._session.make_ready, app._store))
        with contextlib.suppress(TimeoutError):
            # Wait no longer: an application that mounts the service also starts without its database.
            await asyncio.wait_for(asyncio.shield(connecting), CONNECT_TIMEOUT)
        app._ready_redactor()
        observe_queues(app)
        if background is not None:
            background.begin()
        yield
        connecting.cancel()
        patience.until = min(patience.until, time.monotonic() + SHUTDOWN_TIMEOUT)
        await live.aclose()
        await close_background(service)
        await app._store.leave_loop()

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
                app._session,
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
    service.state.patience = patience
    service.state.measures = measures
    service.state.authenticate, service.state.tokens = authenticate, tokens
    add_api(service, app)
    if dashboard:
        pages = make_dashboard(app)
        pages.state.live = live
        pages.state.authenticate = authenticate  # the login page opens sessions with it, if it is ``Tokens``
        service.router.routes.insert(0, DashboardMount(pages, excluded=API))
    return service
