"""The service on a loopback port, below a path and with a token; and the client in its sync and async form."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.routing import Mount

from holdfast import App
from holdfast.app.internals import session_of
from holdfast.engine.operation import operation, stream
from holdfast.features.tokens.model import scopes_of
from holdfast.remote import Client, Retrying
from holdfast.remote.runners import RemoteNamespace
from holdfast.server.app import make_service
from holdfast.server.auth import Identity
from tests.app.conftest import app, new_app
from tests.support.http_server import serving

__all__ = ["app", "new_app"]

TOKEN = "hf_a-token-that-must-never-be-shown"
BELOW = "/below/here"
SOON = Retrying(tries=4, first=0.01, longest=0.05)


def service_of(app: App, *, roles: tuple[str, ...] = ("admin",), tenant: str = "default") -> Starlette:
    """The service mounted below a path of another application; it accepts one token."""
    known = Identity("a tester", tenant, scopes_of(roles))

    def authenticate(request: Request) -> Identity | None:
        return known if request.headers.get("authorization") == f"Bearer {TOKEN}" else None

    session_of(app).make_ready()
    return Starlette(routes=[Mount(BELOW, make_service(app, authenticate=authenticate))])


@pytest.fixture
def base(app: App) -> Iterator[str]:
    with serving(service_of(app)) as origin:
        yield origin + BELOW


class Awaiting:
    """The async methods of a client under the names of the sync ones, so that a test is written once."""

    def __init__(self, inner: RemoteNamespace) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        if isinstance(getattr(type(self._inner), name, None), operation | stream):
            return getattr(self._inner, "await_end" if name == "wait" else f"a{name}")
        value = getattr(self._inner, name)
        if isinstance(value, RemoteNamespace):
            return Awaiting(value)
        if not callable(value):
            return value

        def call(*args: Any, **options: Any) -> Any:
            result = value(*args, **options)
            return Awaiting(result) if isinstance(result, RemoteNamespace) else result

        return call


class Driver:
    """A client in its sync or async form, for tests of both: ``do(lambda client: client.jobs.get(id))``."""

    def __init__(self, form: str, url: str, token: str = TOKEN, **chosen: Any) -> None:
        settings: dict[str, Any] = {"retrying": SOON, "timeout": 10.0} | chosen
        self.loop = asyncio.new_event_loop()
        self.blocking = form == "blocking"
        client = Client(url, token=token, **settings)
        self.client: Any = client if self.blocking else Awaiting(client)

    def do(self, act: Callable[[Any], Any]) -> Any:
        return act(self.client) if self.blocking else self.loop.run_until_complete(act(self.client))

    def take(self, act: Callable[[Any], Any], most: int = 1_000) -> list[Any]:
        """The first items of an iterator."""
        if self.blocking:
            iterator = act(self.client)
            first = list(islice(iterator, most))
            iterator.close()
            return first
        return self.loop.run_until_complete(self._take(act, most))

    async def _take(self, act: Callable[[Any], Any], most: int) -> list[Any]:
        items, first = act(self.client), []
        async for item in items:
            first.append(item)
            if len(first) == most:
                break
        await items.aclose()
        return first

    def close(self) -> None:
        if self.blocking:
            self.client.close()
        else:
            self.loop.run_until_complete(self.client.aclose())
        self.loop.close()


@pytest.fixture(params=["blocking", "awaiting"])
def form(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def drive(form: str) -> Iterator[Callable[..., Driver]]:
    made: list[Driver] = []

    def make(url: str, **settings: Any) -> Driver:
        made.append(Driver(form, url, **settings))
        return made[-1]

    yield make
    for driver in made:
        driver.close()
