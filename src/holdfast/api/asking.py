"""What routes take as parameters: the app, and the identity with the scope that the route asks for."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated, Any, TypeVar

from fastapi import Depends, Request

from holdfast.access import Identity, Scope, identity_of, require, require_one, require_whole
from holdfast.app import App
from holdfast.live import Live

# All are coroutines: what is not, FastAPI runs in a thread.


async def _app(request: Request) -> App:
    app = request.app.state.app
    assert isinstance(app, App)
    return app


async def _live(request: Request) -> Live:
    live = request.app.state.live
    assert isinstance(live, Live)
    return live


Check = Callable[[Request, Scope], Identity]
T = TypeVar("T")


def _asks(scope: Scope, how: Check) -> Callable[[Request], Awaitable[Identity]]:
    async def check(request: Request) -> Identity:
        return how(request, scope)

    check.scope = scope  # type: ignore[attr-defined]  # the matrix of roles is made from this
    return before_the_body(check)


def before_the_body(check: Callable[[Request], Awaitable[T]]) -> Callable[[Request], Awaitable[T]]:
    """A dependency that ``JsonRoute`` asks before it reads the body, and FastAPI once more after that."""
    check.first = True  # type: ignore[attr-defined]
    return check


def allowed(scope: Scope) -> Any:
    """For a route: ``dependencies=[allowed(Scope.READ)]``."""
    return Depends(_asks(scope, require))


def allowed_one(scope: Scope) -> Any:
    """For what is made for one tenant: whoever acts for all must have named it."""
    return Depends(_asks(scope, require_one))


def allowed_whole(scope: Scope) -> Any:
    """For what concerns every tenant."""
    return Depends(_asks(scope, require_whole))


async def _who(request: Request) -> Identity:
    return identity_of(request)


TheApp = Annotated[App, Depends(_app)]
TheLive = Annotated[Live, Depends(_live)]
Who = Annotated[Identity, Depends(_who)]
