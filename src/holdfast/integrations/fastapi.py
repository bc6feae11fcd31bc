"""FastAPI: lifespan, dependencies, a background worker, and the dashboard and API behind your own authentication.

hosted = Holdfast(app, worker=True)
site = FastAPI(lifespan=hosted.lifespan)
hosted.mount(site, "/jobs", identity=operator)        # `operator` is a dependency that returns an Identity

@site.post("/orders")
async def order(jobs: JobsDep) -> str:
    return (await jobs.aenqueue("receipt", {"order": 7})).id
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

from holdfast.app import App
from holdfast.errors import needs_extra
from holdfast.integrations.web_host import IDENTITY, METHODS, OPEN, by_scope, identity

with needs_extra("FastAPI's integration", "fastapi"):
    from fastapi import APIRouter, Depends, FastAPI, Request, Response
    from starlette.types import ASGIApp, Receive, Scope, Send

    from holdfast.integrations import starlette
    from holdfast.integrations.starlette import jobs_of
    from holdfast.server.auth import Identity

__all__ = ["Holdfast", "Identity", "JobsDep", "identity", "jobs_of", "session_jobs"]

JobsDep = Annotated[App, Depends(jobs_of)]
"""A dependency that provides the app: ``async def order(jobs: JobsDep)``."""


class Holdfast(starlette.Holdfast):
    """An app inside a FastAPI application. ``holdfast.integrations.starlette.Holdfast`` explains the options."""

    def mount(  # type: ignore[override]
        self, site: FastAPI | APIRouter, path: str, *, identity: Callable[..., Any], dashboard: bool = True
    ) -> None:
        """Serve the API and the dashboard below ``path``.

        ``identity`` is a dependency that returns an ``Identity``. It may have dependencies of its own, and refuses a
        request by raising ``HTTPException``.
        """
        service = self.service(by_scope, dashboard=dashboard)
        path = path.rstrip("/")

        def forward(request: Request) -> Response:
            return _Forward(service, path)

        # Not with ``Annotated``: FastAPI resolves annotations in this module, where `identity` is another name.
        depends: Any = Depends(identity)

        def forward_identified(request: Request, user: Any = depends) -> Response:
            request.scope[IDENTITY] = user
            return _Forward(service, path)

        for open_path in OPEN:
            below = "{rest:path}" if open_path.endswith("/") else ""
            site.add_api_route(f"{path}/{open_path}{below}", forward, methods=METHODS, include_in_schema=False)
        site.add_api_route(f"{path}/{{rest:path}}", forward_identified, methods=METHODS, include_in_schema=False)


# Keys of the scope that FastAPI's router has set for the outer route.
_ROUTE_KEYS = frozenset({"path_params", "endpoint", "route", "router"})


class _Forward(Response):
    """A response that another ASGI application produces, below a path."""

    def __init__(self, service: ASGIApp, path: str) -> None:
        super().__init__()
        self._service, self._path = service, path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        inner = {key: value for key, value in scope.items() if key not in _ROUTE_KEYS}
        inner["root_path"] = scope.get("root_path", "") + self._path
        await self._service(inner, receive, send)


def session_jobs(session: Callable[..., Any]) -> Any:
    """Return a dependency that enqueues in the request's SQLAlchemy session: the job exists if the session commits::

        TransactionJobs = Annotated[SessionJobs[AsyncSession], session_jobs(get_session)]

        @site.post("/orders")
        async def order(jobs: TransactionJobs) -> None:
            await jobs.aenqueue(send_receipt, 7)

    ``session`` is the dependency that provides the session. FastAPI calls it once per request, so other parameters of
    the operation that use it have the same session.
    """
    from holdfast.integrations.sqlalchemy import SessionJobs

    depends: Any = Depends(session)

    def bound(session: Any = depends) -> Any:
        return SessionJobs(session)

    return Depends(bound)
