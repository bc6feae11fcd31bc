"""Run an app inside the process of a web application: the mounted API and dashboard, and a background worker.

The integrations for Starlette, FastAPI, Litestar and Flask are thin layers over this module.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import signal
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Any

from holdfast.app import App
from holdfast.app.internals import make_worker, session_of, set_host_loop
from holdfast.engine.hints import check_options
from holdfast.errors import InvalidSetting, StoreUnavailable
from holdfast.features.tokens.model import Role, scopes_of
from holdfast.stores.flow import in_thread
from holdfast.worker.options import WorkerKeywords
from holdfast.worker.startup import refuse_unmigrated, retry_briefly
from holdfast.worker.worker import Worker, WorkerOptions

if TYPE_CHECKING:
    from fastapi import FastAPI
    from starlette.requests import Request

    from holdfast.features.assembly import Store
    from holdfast.server.auth import Authenticate, Identity

log = logging.getLogger("holdfast.worker")

IDENTITY = "holdfast.identity"
"""Key of the ASGI scope under which an integration passes the ``Identity`` of a request to the service."""
METHODS = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]
OPEN = ("static/", "decide/", "api/v1/approvals/by-token/", "livez", "readyz")
"""Paths that need no login: static files, health checks, and links to approvals, which contain a token."""


def identity(actor: str, *roles: str, tenant: str = "default") -> Identity:
    """Return the identity of a user of the dashboard: ``identity(user.email, "operator")``.

    ``actor`` is the name that the ledger records. Roles are ``viewer``, ``producer``, ``operator``, ``approver``,
    ``executor`` and ``admin``. The tenant ``*`` gives access to all tenants. Changes by browsers are accepted only from
    pages of the dashboard: your application probably identifies users by a cookie, which browsers also send from other
    sites. A request without a cookie and without headers of a browser is from a program, and is accepted.
    """
    if not roles:
        raise InvalidSetting(
            f"identity({actor!r}) has no roles, so it may do nothing",
            code="invalid_identity",
            fix=f"Pass roles ({', '.join(Role)}), or return None for a user without access.",
        )
    from holdfast.server.auth import Identity

    return Identity(actor, tenant, scopes_of(roles, ()), ambient=True)


def by_scope(request: Request) -> Identity | None:
    """Authenticate by the identity that the integration has put into the scope."""
    identity: Identity | None = request.scope.get(IDENTITY)
    return identity


class Hosted:
    """An app in a web process. ``worker`` also runs jobs there: True, or the options of ``app.run_worker``."""

    def __init__(self, app: App, *, worker: bool | WorkerKeywords = False) -> None:
        self.app = app
        self._options = None if worker is False else _worker_options({} if worker is True else worker)
        self._services: list[FastAPI] = []
        self._checked: Store | None = None

    def service(self, authenticate: Authenticate, *, dashboard: bool = True) -> FastAPI:
        """Return the HTTP API and the dashboard as an ASGI application. ``running`` includes its lifespan.

        Raises ``InvalidSetting`` if the extra ``server`` is not installed.
        """
        from holdfast.server.app import make_service

        service = make_service(self.app, authenticate=authenticate, dashboard=dashboard)
        self._services.append(service)
        return service

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Run the services and the worker within the block. At its end the worker stops first, within its grace."""
        await in_thread(self.prepare)
        set_host_loop(self.app, asyncio.get_running_loop())
        try:
            async with AsyncExitStack() as stack:
                for service in self._services:
                    await stack.enter_async_context(service.router.lifespan_context(service))
                if self._services:
                    stack.enter_context(_on_signal(self._end_streams))
                if self._options is not None:
                    await stack.enter_async_context(_working(make_worker(self.app, self._options)))
                yield
        finally:
            set_host_loop(self.app, None)
            await session_of(self.app).store.leave_loop()

    def prepare(self) -> None:
        """Create the tables of a SQLite file. Raise if they are not in a PostgreSQL database; an unreachable one is not
        waited for."""
        session = session_of(self.app)
        retry_briefly(session.make_ready)
        store = session.store
        if store.embedded or store is self._checked:
            return
        try:
            refuse_unmigrated(store)
        except StoreUnavailable as error:
            log.warning("The database is unreachable, and its tables were not checked: %s", error.message)
        else:
            self._checked = store

    async def _end_streams(self) -> None:
        """End the streams of live pages: a server waits for open connections before it ends the lifespan."""
        for service in self._services:
            service.state.stopping.set()
            await service.state.live.aclose()


@contextmanager
def _on_signal(call: Callable[[], Coroutine[Any, Any, None]]) -> Iterator[None]:
    """Call a function on SIGINT and SIGTERM, in addition to the handlers that the server has installed."""
    if threading.current_thread() is not threading.main_thread():  # a test client; only the main thread gets signals
        yield
        return
    loop, tasks = asyncio.get_running_loop(), set[asyncio.Task[None]]()
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def begin() -> None:
        tasks.add(loop.create_task(call()))

    def stop(number: int, frame: FrameType | None) -> None:
        loop.call_soon_threadsafe(begin)
        handler = before[signal.Signals(number)]
        if callable(handler):
            handler(number, frame)

    replaced = [number for number, handler in before.items() if callable(handler)]
    for number in replaced:
        signal.signal(number, stop)
    try:
        yield
    finally:
        for number in replaced:
            if signal.getsignal(number) is stop:
                signal.signal(number, before[number])


@asynccontextmanager
async def _working(worker: Worker) -> AsyncIterator[None]:
    task = asyncio.create_task(worker.run(), name="holdfast-worker")
    task.add_done_callback(_report)
    try:
        yield
    finally:
        worker.stop()
        await asyncio.wait({task})


def _report(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        log.critical("The worker of this process has failed; its jobs wait for another worker", exc_info=error)


def _worker_options(options: Mapping[str, Any]) -> WorkerOptions:
    check_options(options, [field.name for field in dataclasses.fields(WorkerOptions)])
    return WorkerOptions(**options)


@contextmanager
def background_worker(app: App, **options: object) -> Iterator[Worker]:
    """Run a worker in a thread, for programs without an event loop: ``with background_worker(app): site.run()``.

    At the end of the block it claims no more jobs and waits for running ones, within its grace period. Options are
    those of ``app.run_worker``.
    """
    worker = make_worker(app, _worker_options(options))

    async def serve() -> None:
        try:
            await worker.run()
        finally:
            await session_of(app).store.leave_loop()

    def run() -> None:
        try:
            asyncio.run(serve())
        except Exception:
            log.critical("The worker of this process has failed; its jobs wait for another worker", exc_info=True)

    thread = threading.Thread(target=run, name="holdfast-worker", daemon=True)
    thread.start()
    try:
        yield worker
    finally:
        worker.stop()
        thread.join()
