"""Litestar: a plugin with a lifespan, a dependency, a background worker, and the dashboard and API below a path.

    site = Litestar(
        route_handlers=[…],
        plugins=[HoldfastPlugin(app, worker=True, path="/jobs", authenticate=current_user)],
    )

A handler with a parameter ``jobs: JobsDep`` receives the app.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any
from urllib.parse import unquote

from holdfast.app import App
from holdfast.errors import InvalidSetting, needs_extra
from holdfast.integrations.web_host import IDENTITY, Hosted, by_scope, identity
from holdfast.worker.options import WorkerKeywords

with needs_extra("Litestar's integration", "litestar"):
    from litestar import Litestar, Request, asgi
    from litestar.config.app import AppConfig
    from litestar.di import NamedDependency, Provide
    from litestar.plugins import InitPlugin
    from litestar.types import Receive, Scope, Send

    from holdfast.server.auth import Identity

__all__ = ["HoldfastPlugin", "Identity", "JobsDep", "identity"]

JobsDep = NamedDependency[App]
"""Type of the parameter ``jobs``, with which a handler receives the app: ``async def order(jobs: JobsDep)``."""

Authenticate = Callable[[Request[Any, Any, Any]], Identity | Awaitable[Identity | None] | None]


class HoldfastPlugin(InitPlugin):
    """Runs an app inside a Litestar application.

    ``worker`` also runs jobs in this process: True, or the options of ``app.run_worker``. ``path`` is where the API and
    the dashboard are served; ``authenticate`` receives the request and returns an ``Identity``, or None to refuse it.
    ``dependency`` is the name of the parameter with which handlers receive the app.
    """

    def __init__(
        self,
        app: App,
        *,
        worker: bool | WorkerKeywords = False,
        path: str | None = None,
        authenticate: Authenticate | None = None,
        dashboard: bool = True,
        dependency: str = "jobs",
    ) -> None:
        if (path is None) != (authenticate is None):
            raise InvalidSetting("path and authenticate belong together", code="conflicting_options")
        self.app = app
        self._hosted = Hosted(app, worker=worker)
        self._path, self._authenticate, self._dashboard, self._dependency = path, authenticate, dashboard, dependency

    def on_app_init(self, app_config: AppConfig) -> AppConfig:
        app_config.dependencies[self._dependency] = Provide(lambda: self.app, sync_to_thread=False)
        # Last, so that the worker starts after the lifespans of the application and ends before them.
        app_config.lifespan = [*(app_config.lifespan or ()), self._lifespan]
        if self._path is not None and self._authenticate is not None:
            app_config.route_handlers.append(self._mounted(self._path, self._authenticate))
        return app_config

    def _lifespan(self, _: Litestar) -> AbstractAsyncContextManager[None]:
        return self._hosted.running()

    def _mounted(self, path: str, authenticate: Authenticate) -> Any:
        service = self._hosted.service(by_scope, dashboard=self._dashboard)
        root = path.rstrip("/")

        @asgi(path, is_mount=True, copy_scope=True)
        async def jobs_service(scope: Scope, receive: Receive, send: Send) -> None:
            user = authenticate(Request(scope))  # without the body, which the service reads
            inner: dict[str, Any] = {
                "type": "http",
                **{key: scope.get(key) for key in _REQUEST_KEYS if key in scope},
                "root_path": str(scope.get("root_path", "")) + root,
                "path": _path(scope) if _path(scope) != root else f"{root}/",
                IDENTITY: await user if inspect.isawaitable(user) else user,
            }
            await service(inner, receive, send)  # type: ignore[arg-type]

        return jobs_service


def _path(scope: Scope) -> str:
    """Return the path as requested: Litestar appends a slash to the path of a mounted application."""
    return unquote(scope["raw_path"].partition(b"?")[0].decode("latin-1"))


_REQUEST_KEYS = (
    *("asgi", "http_version", "method", "scheme", "query_string", "headers", "server", "client", "raw_path"),
    "extensions",
)
"""Keys of the scope that describe the request. Litestar has added others."""
