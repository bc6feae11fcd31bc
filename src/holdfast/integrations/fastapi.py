"""FastAPI: lifespan, dependencies, background worker, dashboard and API behind your own authentication.

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

from fastapi import APIRouter, Depends, FastAPI, Request, Response
from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Receive, Scope, Send

from holdfast.app import App
from holdfast.integrations import starlette
from holdfast.integrations.starlette import jobs_of
from holdfast.integrations.web_host import IDENTITY, by_scope, identity
from holdfast.server.auth import Identity

__all__ = ["Holdfast", "Identity", "JobsDep", "identity", "jobs_of", "session_jobs"]

METHODS = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]
OPEN = ("/static/{rest:path}", "/decide/{rest:path}", "/api/v1/approvals/by-token/{rest:path}", "/livez", "/readyz")
"""What needs no login: files, health checks, and links to approvals, which carry their own credential."""


def _jobs(connection: HTTPConnection) -> App:
    return jobs_of(connection)


JobsDep = Annotated[App, Depends(_jobs)]
"""The app, as a parameter of a path operation: ``async def order(jobs: JobsDep)``."""


class Holdfast(starlette.Holdfast):
    """An app inside a FastAPI application. See ``holdfast.integrations.starlette.Holdfast`` for the options."""

    def mount(  # type: ignore[override]
        self, site: FastAPI | APIRouter, path: str, *, identity: Callable[..., Any], dashboard: bool = True
    ) -> None:
        """Serve the API and the dashboard below ``path``.

        ``identity`` is a dependency that returns an ``Identity``. It may depend on others, and refuses a request by
        raising ``HTTPException``, like any dependency.
        """
        service = self.service(by_scope, dashboard=dashboard)
        path = path.rstrip("/")

        def pass_on(request: Request) -> Response:
            return _PassOn(service, path)

        # Not by ``Annotated``: an annotation is looked up by name in this module, not in this function.
        depends: Any = Depends(identity)

        def identified(request: Request, who: Any = depends) -> Response:
            request.scope[IDENTITY] = who
            return _PassOn(service, path)

        for open_path in OPEN:
            site.add_api_route(f"{path}{open_path}", pass_on, methods=METHODS, include_in_schema=False)
        site.add_api_route(f"{path}/{{rest:path}}", identified, methods=METHODS, include_in_schema=False)


_OF_THE_ROUTE = frozenset({"path_params", "endpoint", "route", "router"})


class _PassOn(Response):
    """A response that another ASGI application gives, below a path."""

    def __init__(self, service: ASGIApp, path: str) -> None:
        super().__init__()
        self._service, self._path = service, path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        below = {
            key: value for key, value in scope.items() if key not in ("path_params", "endpoint", "route", "router")
        }
        below["root_path"] = scope.get("root_path", "") + self._path
        await self._service(below, receive, send)


def session_jobs(session: Callable[..., Any]) -> Any:
    """A dependency that enqueues in the request's SQLAlchemy session: the job exists if that commits.

        TransactionJobs = Annotated[SessionJobs[AsyncSession], session_jobs(get_session)]

        @site.post("/orders")
        async def order(jobs: TransactionJobs) -> None:
            await jobs.aenqueue(send_receipt, 7)

    ``session`` is the dependency that other parameters of the operation have their session from: FastAPI calls it once
    per request.
    """
    from holdfast.integrations.sqlalchemy import SessionJobs

    depends: Any = Depends(session)

    def bound(session: Any = depends) -> Any:
        return SessionJobs(session)

    return Depends(bound)
