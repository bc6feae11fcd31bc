"""Starlette: lifespan, a background worker, and the dashboard and API below a path.

hosted = Holdfast(app, worker=True)
site = Starlette(routes=…, lifespan=hosted.lifespan)
hosted.mount(site, "/jobs", authenticate=current_user)
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

from holdfast.app import App
from holdfast.errors import InvalidSetting, needs_extra
from holdfast.integrations.web_host import Hosted, identity
from holdfast.worker.options import WorkerKeywords

with needs_extra("Starlette's integration", "server"):
    from starlette.applications import Starlette
    from starlette.requests import HTTPConnection

    from holdfast.server.auth import Authenticate, Identity

__all__ = ["Holdfast", "Identity", "identity", "jobs_of"]

Lifespan = Callable[[Any], AbstractAsyncContextManager[Mapping[str, Any] | None]]


class Holdfast(Hosted):
    """An app inside a Starlette or FastAPI application.

    ``worker`` also runs jobs in this process: True, or the options of ``app.run_worker``. ``lifespan`` is the lifespan
    of your application: it starts before the worker and ends after it.
    """

    def __init__(self, app: App, *, worker: bool | WorkerKeywords = False, lifespan: Lifespan | None = None) -> None:
        super().__init__(app, worker=worker)
        self._lifespan = lifespan

    @asynccontextmanager
    async def lifespan(self, site: Any) -> AsyncIterator[Mapping[str, Any]]:
        """Pass it to ``Starlette(lifespan=…)`` or ``FastAPI(lifespan=…)``."""
        site.state.holdfast = self.app
        if self._lifespan is None:
            async with self.running():
                yield {}
        else:
            async with self._lifespan(site) as state, self.running():
                yield state or {}

    def mount(self, site: Starlette, path: str, *, authenticate: Authenticate, dashboard: bool = True) -> None:
        """Serve the API and the dashboard below ``path``.

        ``authenticate`` receives the request and returns an ``Identity``, or None to refuse it.
        """
        site.mount(path, self.service(authenticate, dashboard=dashboard))


def jobs_of(connection: HTTPConnection) -> App:
    """Return the app of the current web application: ``jobs_of(request).enqueue(…)``.

    Raises ``InvalidSetting`` if the web application does not use ``Holdfast(app).lifespan``.
    """
    app = getattr(connection.app.state, "holdfast", None)
    if not isinstance(app, App):
        raise InvalidSetting(
            "this web application has no Holdfast app",
            code="no_app",
            fix="Pass the lifespan: FastAPI(lifespan=Holdfast(app).lifespan), and in tests use the client as a context"
            " manager.",
        )
    return app
