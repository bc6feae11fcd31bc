"""``app`` runs on SQLite, ``each_app`` on each store; ``calls`` records side effects."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta

import pytest

from holdfast import App
from holdfast.app.internals import session_of


@pytest.fixture
def app(sqlite_url: str) -> Iterator[App]:
    with closing(App(sqlite_url, name="tests", enqueued_by="tester")) as made:
        yield made


@pytest.fixture
def each_app(url: str) -> Iterator[App]:
    with closing(App(url, name="tests", enqueued_by="tester")) as made:
        yield made


@pytest.fixture
def calls() -> list[str]:
    return []


def later(app: App, span: timedelta) -> None:
    session_of(app).run(session_of(app).store.clock.set(span, None))
