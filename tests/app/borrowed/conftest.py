"""Connections of the caller, from every supported library, to a database with jobs and notes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest

from holdfast import App
from holdfast.app.internals import session_of
from holdfast.features.assembly import open_store
from tests.app.notes import prepare_notes
from tests.support.caller_connections import ON_POSTGRES, ON_SQLITE, Borrower
from tests.support.ledger import check_ledger

BORROWERS = [("postgres", make) for make in ON_POSTGRES] + [("sqlite", make) for make in ON_SQLITE]


def _named(case: object) -> str:
    return case if isinstance(case, str) else getattr(case, "__name__", "")


@pytest.fixture(params=BORROWERS, ids=lambda case: "-".join(map(_named, case)))
def case(request: pytest.FixtureRequest) -> tuple[str, Callable[[str], Borrower]]:
    value: tuple[str, Callable[[str], Borrower]] = request.param
    return value


@pytest.fixture
def url(request: pytest.FixtureRequest, case: tuple[str, Any]) -> str:
    value: str = request.getfixturevalue(f"{case[0]}_url")
    return value


@pytest.fixture
def app(url: str) -> Iterator[App]:
    with closing(App(url, name="tests", enqueued_by="tester")) as app:
        session_of(app).make_ready()
        prepare_notes(url)
        yield app
    with closing(open_store(url)) as store:
        check_ledger(store)


@pytest.fixture
def borrower(case: tuple[str, Callable[[str], Borrower]], app: App, url: str) -> Iterator[Borrower]:
    with closing(case[1](url)) as borrower:
        yield borrower
