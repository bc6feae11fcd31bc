"""A real server on loopback, and policies that let it be reached, which by default it cannot be."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from holdfast.outgoing import EgressPolicy
from tests.support.http_server import Web, running

Policy = Callable[..., EgressPolicy]


@pytest.fixture
def web() -> Iterator[Web]:
    with running() as server:
        yield server


@pytest.fixture
def open_to(web: Web) -> Policy:
    """A policy that allows this one server, and all of a test's own wishes."""

    def policy(**wishes: Any) -> EgressPolicy:
        usual: dict[str, Any] = {"allow": ("127.0.0.1/32",), "ports": (web.port,)}
        return EgressPolicy(**(usual | wishes))

    return policy
