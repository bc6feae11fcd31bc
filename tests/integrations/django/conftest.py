"""Django's default connection on the database of a test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from asgiref.sync import SyncToAsync

from tests.support import django_setup as django_handles

django_handles.set_up()


@pytest.fixture
def database(url: str) -> Iterator[str]:
    """A database with the tables of Holdfast and of the shop. Yields its URL."""
    yield from _used(url)


@pytest.fixture
def file(sqlite_url: str) -> Iterator[str]:
    """The same on SQLite alone."""
    yield from _used(sqlite_url)


def _used(url: str) -> Iterator[str]:
    from django.db import connection, connections

    from tests.integrations.django.shop import tasks
    from tests.integrations.django.shop.models import Order

    django_handles.make_default(url)
    with connection.schema_editor() as editor:
        editor.create_model(Order)
    tasks.seen.clear()
    yield url
    connections.close_all()
    # Async code has queries run in this thread, which would keep its connection to the database of this test.
    SyncToAsync.single_thread_executor.submit(_forget).result()
    tasks.app.session.store.close()


def _forget() -> None:
    from django.db import connections

    connections.close_all()
    if hasattr(connections._connections, "default"):
        del connections["default"]
