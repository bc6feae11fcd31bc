"""The kit on both stores. After every test, the ledger of every job is replayed and compared with the job."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from holdfast.app.internals import session_of
from holdfast.testing import Kit
from tests.kit import shop
from tests.support.ledger import check_ledger


@pytest.fixture(params=["sqlite", "postgres"])
def kit_url(request: pytest.FixtureRequest) -> str | None:
    """The URL for the kit: None for a temporary SQLite file, or a PostgreSQL database."""
    url: str | None = request.getfixturevalue("postgres_url") if request.param == "postgres" else None
    return url


@pytest.fixture
def kit(kit_url: str | None) -> Iterator[Kit]:
    with Kit(shop.app, kit_url, timeout=60) as kit:
        yield kit
        check_ledger(session_of(shop.app).store)
