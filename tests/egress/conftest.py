"""A real server on loopback, and policies that allow it (the default policy does not)."""

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
    """A policy that allows this server, plus the settings of a test."""

    def policy(**settings: Any) -> EgressPolicy:
        defaults: dict[str, Any] = {"allow": ("127.0.0.1/32",), "ports": (web.port,)}
        return EgressPolicy(**(defaults | settings))

    return policy
