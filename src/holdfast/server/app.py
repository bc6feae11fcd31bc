"""The service: the HTTP API and the dashboard of an app, as one ASGI application to run or to mount.

``holdfast serve`` runs it; ``other.mount("/jobs", make_service(app, authenticate=…))`` puts it below a path of yours.
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
from holdfast.server.api import add_api, leave_off
from holdfast.server.auth import Authenticate, AuthMiddleware, Paths
from holdfast.server.dashboard import Below, make_dashboard
from holdfast.server.live import LedgerFeed
from holdfast.server.maintenance import BackgroundMaintenance
from holdfast.server.metrics import observe_queues
from holdfast.server.middleware import TIMEOUT, BodyLimit, HeadRequests, PageHeaders
from holdfast.server.request_log import Measure, RequestLog
from holdfast.stores.flow import WaitLimit
from holdfast.worker.startup import when_reachable

FIRST_ANSWER = 3.0
"""Seconds that a start waits for the database."""
LAST_DUTY = 5.0
"""Seconds for what is being done on the side when the service ends."""
# What may be asked without saying who one is: whether we are alive, and what carries its own credential.
API = Paths(frozenset({"/api/", "/livez", "/readyz", "/metrics"}))
OPEN = Paths(frozenset({"/livez", "/readyz", "/static/", "/login", "/decide/", "/api/v1/approvals/by-token/"}))


def make_service(
    app: App,
    *,
    authenticate: Authenticate,
    dashboard: bool = True,
    duties: str | None = None,
    body_timeout: float = TIMEOUT,
) -> FastAPI:
    """``authenticate`` says who calls (``tokens_of(app)``, ``at_this_machine(app)`` or your own). ``duties``:
    for which tenant (``*``: every) it does what a worker does on the side; None leaves that to workers.
    ``body_timeout``: seconds that a request body may take to arrive; a large one has more, by its size."""
    measures: list[Measure] = []

    live = LedgerFeed(app._session)
    patience = WaitLimit()  # of what is done beside the answers, and of those where a server of ours runs
    attending = None if duties is None else BackgroundMaintenance(app, duties, patience)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        reaching = asyncio.create_task(when_reachable(app._session.make_ready, app._store))
        with contextlib.suppress(TimeoutError):
            # Not waited for any longer: an application that mounts the service starts without its database, too.
            await asyncio.wait_for(asyncio.shield(reaching), FIRST_ANSWER)
        app._ready_redactor()
        observe_queues(app)
        if attending is not None:
            attending.begin()
        yield
        reaching.cancel()
        patience.until = min(patience.until, time.monotonic() + LAST_DUTY)
        await live.aclose()
        await leave_off(service)
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
            Middleware(HeadRequests),
            Middleware(RequestLog, measures),
            Middleware(PageHeaders),
            Middleware(BodyLimit, open_to_all=OPEN, timeout=body_timeout),
            Middleware(
                AuthMiddleware, app._session, authenticate, open_to_all=OPEN, login="/login" if dashboard else None
            ),
            Middleware(FastEnqueue),
            # The highest level, which is the usual one, takes three times as long for a twentieth less.
            Middleware(GZipMiddleware, minimum_size=1_000, compresslevel=4),
        ],
    )
    service.state.app, service.state.live, service.state.attending = app, live, attending
    service.state.stopping = asyncio.Event()  # whoever waits for something answers when this is set
    service.state.patience = patience
    service.state.measures = measures
    service.state.authenticate = authenticate
    add_api(service, app)
    if dashboard:
        pages = make_dashboard(app)
        pages.state.live = live
        pages.state.authenticate = authenticate  # the page to log in at opens sessions with it, if it can
        service.router.routes.insert(0, Below(pages, but=API))
    return service
