"""The kit on both stores; after each test the ledger of every job is replayed and compared with the job."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from holdfast.testing import Kit
from tests.kit import shop
from tests.support.ledger import check_ledger


@pytest.fixture(params=["sqlite", "postgres"])
def place(request: pytest.FixtureRequest) -> str | None:
    """What the kit is given: no URL, for a temporary SQLite file, or that of a PostgreSQL database."""
    found: str | None = request.getfixturevalue("postgres_url") if request.param == "postgres" else None
    return found


@pytest.fixture
def kit(place: str | None) -> Iterator[Kit]:
    with Kit(shop.app, place, timeout=60) as kit:
        yield kit
        check_ledger(shop.app._store)
