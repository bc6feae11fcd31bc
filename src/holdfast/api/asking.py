"""What routes take as parameters: the app, and the identity with the scope that the route asks for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

from fastapi import Depends, Request

from holdfast.access import Identity, Scope, require
from holdfast.app import App


def _app(request: Request) -> App:
    app = request.app.state.app
    assert isinstance(app, App)
    return app


def _asks(scope: Scope) -> Callable[[Request], Identity]:
    def check(request: Request) -> Identity:
        return require(request, scope)

    check.scope = scope  # type: ignore[attr-defined]  # the matrix of roles is made from this
    return check


def allowed(scope: Scope) -> Any:
    """For a route: ``dependencies=[allowed(Scope.READ)]``."""
    return Depends(_asks(scope))


TheApp = Annotated[App, Depends(_app)]
