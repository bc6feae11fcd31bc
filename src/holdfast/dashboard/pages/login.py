"""Logging in: a token is shown once, the browser is given a session for it, and keeps that in a cookie.

The cookie is no use to scripts (HttpOnly) and is not sent along from other sites (SameSite=Strict); the session ends
with the token. Where somebody else says who calls (a program that mounts us) there is nothing to log in to here.
"""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from holdfast.access.attempts import Attempts
from holdfast.access.origin import comes_from_here
from holdfast.access.tokens import COOKIE, SESSION, Tokens
from holdfast.dashboard.acting import below, field, go
from holdfast.dashboard.rendering import render
from holdfast.errors import NotFound, Refused

attempts = Attempts()


def sessions_of(request: Request) -> Tokens:
    found = getattr(request.app.state, "authenticate", None)
    if not isinstance(found, Tokens):
        raise NotFound("there is no log-in here: whoever runs this service says who you are", code="no_login")
    return found


async def show(request: Request) -> Response:
    sessions_of(request)
    return await render(request, "login.html", wrong=None, next=onward(request.query_params.get("next")))


async def log_in(request: Request) -> Response:
    sessions = sessions_of(request)
    if not comes_from_here(request):
        raise Refused("this request did not come from a page of this service", code="cross_site")
    address = request.client.host if request.client else ""
    target = onward(await field(request, "next"))
    if not await attempts.wait(address):
        return await render(
            request, "login.html", status=429, wrong="Too many attempts; try again in a while.", next=target
        )
    session = await sessions.open(await field(request, "token"))
    if session is None:
        attempts.failed(address)
        return await render(
            request, "login.html", status=401, wrong="This token is not known, or is over.", next=target
        )
    attempts.succeeded(address)
    answer = go(request, target)
    answer.set_cookie(
        COOKIE,
        session,
        max_age=int(SESSION),
        httponly=True,
        samesite="strict",
        secure=request.url.scheme == "https",
        path=request.scope.get("root_path", "") or "/",
    )
    return answer


async def log_out(request: Request) -> Response:
    await sessions_of(request).end(request)
    answer = go(request, "/login")
    answer.delete_cookie(COOKIE, path=request.scope.get("root_path", "") or "/", httponly=True, samesite="strict")
    return answer


def onward(path: str | None) -> str:
    """Where to go after: a path of ours and nothing else, whatever the link said."""
    there = below(path or "/")
    return "/" if there.startswith(("/login", "/logout")) else there


routes = [
    Route("/login", show, methods=["GET"]),
    Route("/login", log_in, methods=["POST"]),
    Route("/logout", log_out, methods=["POST"]),
]
