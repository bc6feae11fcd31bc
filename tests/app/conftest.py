"""The app on each store. After every test, the ledger of every job is replayed and compared with the job."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing

import pytest

from holdfast import App
from holdfast.features.assembly import open_store
from tests.support.ledger import check_ledger

NewApp = Callable[..., App]


@pytest.fixture
def new_app(url: str) -> Iterator[NewApp]:
    """Apps on one database, each with its own store, as in several processes."""
    with ExitStack() as stack:

        def make(**settings: object) -> App:
            settings = {"name": "tests", "enqueued_by": "tester"} | settings
            return stack.enter_context(closing(App(url, **settings)))  # type: ignore[arg-type]

        yield make
    with closing(open_store(url)) as store:
        try:
            check_ledger(store)
        except Exception:
            if store.schema().current:  # checked last: another schema is rare, and the check costs a connection
                raise


@pytest.fixture
def app(new_app: NewApp) -> App:
    return new_app()
