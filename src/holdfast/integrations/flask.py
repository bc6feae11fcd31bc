"""Flask: an extension with ``current_jobs``, ``flask holdfast worker``, and the dashboard behind your own login.

    jobs = Holdfast(app)
    jobs.init_app(site)
    jobs.mount(site, "/jobs", identity=current_user)          # a function that reads flask.session, for example

Run workers as separate processes (``flask --app shop holdfast worker``), or in a thread of a small deployment:
``with background_worker(app): site.run()``.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, cast

from holdfast.app import App
from holdfast.app.internals import session_of
from holdfast.errors import InvalidSetting, needs_extra
from holdfast.integrations.web_host import IDENTITY, METHODS, OPEN, Hosted, background_worker, by_scope, identity
from holdfast.worker.options import WorkerOptions
from holdfast.worker.startup import retry_briefly, until_reachable

with needs_extra("Flask's integration", "flask"):
    import click
    from flask import Flask, Response, abort, current_app, redirect, request
    from flask.cli import AppGroup
    from flask.typing import ResponseReturnValue
    from werkzeug.local import LocalProxy

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

    from holdfast.server.auth import Identity

__all__ = ["Holdfast", "background_worker", "current_jobs", "identity"]

KEY = "holdfast"
LEVELS = ["debug", "info", "warning", "error"]


def _current() -> App:
    extension = current_app.extensions.get(KEY)
    if not isinstance(extension, Holdfast):
        raise InvalidSetting(
            "this Flask application has no Holdfast app",
            code="no_app",
            fix="Register the app: Holdfast(app).init_app(site).",
        )
    return extension.app


current_jobs = cast(App, LocalProxy(_current))
"""The app of the current Flask application: ``current_jobs.enqueue(…)``."""


class Holdfast(Hosted):
    """The Flask extension. ``init_app`` may be called for several Flask applications."""

    def __init__(self, app: App, site: Flask | None = None) -> None:
        super().__init__(app)
        if site is not None:
            self.init_app(site)

    def init_app(self, site: Flask) -> None:
        """Register the extension and the command ``flask holdfast worker``."""
        site.extensions[KEY] = self
        # Before a view opens a transaction, in which the tables of a new SQLite file cannot be created. The service
        # checks those in PostgreSQL when it starts: other views may not need them.
        site.before_request(lambda: retry_briefly(session_of(self.app).make_ready))
        site.cli.add_command(self._commands())

    def mount(self, site: Flask, path: str, *, identity: Callable[[], Identity | None], dashboard: bool = True) -> None:
        """Serve the API and the dashboard below ``path``.

        ``identity`` is called during the request and returns an ``Identity``, or None, which is answered with 401.
        """
        path, wsgi = path.rstrip("/"), _Bridge(self, self.service(by_scope, dashboard=dashboard))

        def jobs_service(rest: str) -> ResponseReturnValue:
            environ = {**request.environ, "SCRIPT_NAME": request.script_root + path, "PATH_INFO": f"/{rest}"}
            if not rest.startswith(OPEN):
                environ[IDENTITY] = identity() or abort(401)
            return Response.from_app(wsgi, environ)

        options: dict[str, Any] = {"methods": METHODS, "provide_automatic_options": False, "strict_slashes": False}
        site.add_url_rule(f"{path}/", "holdfast", lambda: jobs_service(""), **options)
        site.add_url_rule(f"{path}/<path:rest>", "holdfast_below", jobs_service, **options)
        site.add_url_rule(path, "holdfast_root", lambda: redirect(f"{request.script_root}{path}/"), methods=["GET"])

    def _commands(self) -> AppGroup:
        group = AppGroup("holdfast", help="Run jobs.")

        @group.command("worker", with_appcontext=False)
        @click.option(
            "--queues", "--queue", multiple=True, metavar="A,B", help="Queues to serve; default: all declared."
        )
        @click.option("--concurrency", default=16, show_default=True, help="Number of jobs to run at once.")
        @click.option("--burst", is_flag=True, help="Exit when no job is left to claim.")
        @click.option("--log-level", default="info", show_default=True, type=click.Choice(LEVELS), help="Log level.")
        def worker(queues: tuple[str, ...], concurrency: int, burst: bool, log_level: str) -> None:
            """Run jobs until stopped, like ``holdfast worker``, which has more options."""
            from holdfast.cli.failures import guarded

            code = guarded(lambda: _work(self.app, queues, concurrency, burst, log_level), as_json=False)
            raise SystemExit(code)

        return group


def _work(app: App, queues: tuple[str, ...], concurrency: int, burst: bool, log_level: str) -> None:
    session = session_of(app)
    from holdfast.cli import options, output
    from holdfast.cli.run_worker import run_to_end, serve

    output.set_up(log_level, as_json=options.logs_json(None, False))
    names, weights = options.queues_of(",".join(queues) or options.ALL_QUEUES)
    settings = WorkerOptions(queues=names, weights=weights, concurrency=concurrency, burst=burst)
    if not burst:
        until_reachable(session.make_ready, session.store)
    run_to_end(serve(app, settings, tell=output.say))


class _Bridge:
    """Serves the ASGI service as a WSGI application, on an event loop in a thread.

    The thread starts with the first request, because a server may fork its workers after the import.
    """

    def __init__(self, hosted: Hosted, service: ASGIApp) -> None:
        self._hosted, self._service = hosted, service
        self._lock = threading.Lock()
        self._wsgi: Any = None

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Any:
        with self._lock:
            if self._wsgi is None:
                self._wsgi = self._start()
        return self._wsgi(environ, start_response)

    def _start(self) -> Any:
        from a2wsgi import ASGIMiddleware

        ready, loop = Future[None](), asyncio.new_event_loop()

        async def run() -> None:
            try:
                async with self._hosted.running():
                    ready.set_result(None)
                    await asyncio.Event().wait()  # until the process ends
            except BaseException as error:
                if ready.done():
                    raise
                ready.set_exception(error)

        threading.Thread(target=lambda: loop.run_until_complete(run()), name="holdfast-dashboard", daemon=True).start()
        ready.result()
        return ASGIMiddleware(cast(Any, self._identified), loop=loop)

    async def _identified(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope[IDENTITY] = scope["wsgi_environ"].get(IDENTITY)
        await self._service(scope, receive, send)
