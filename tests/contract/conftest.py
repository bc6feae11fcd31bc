"""The contract suite runs on every store: SQLite, and PostgreSQL as a plain owner, so that row-level security applies.

After each test the ledger of every job is replayed and compared with the job (`tests/support/ledger.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from holdfast.features.assembly import Store, open_store
from tests.support.ledger import check_ledger
from tests.support.postgres_roles import OwnedDatabases, as_role
from tests.support.postgres_server import GivenServer, PostgresServer

SQLITE, POSTGRES = "sqlite", "postgres"


@pytest.fixture(scope="session")
def owned_databases(postgres_server: PostgresServer | GivenServer) -> Iterator[OwnedDatabases]:
    databases = OwnedDatabases(postgres_server)
    yield databases
    databases.close()


@pytest.fixture
def owned_postgres_url(owned_databases: OwnedDatabases) -> Iterator[str]:
    """URL of a fresh, migrated database that belongs to a role without superuser rights, connected as that role."""
    with owned_databases.fresh() as dsn:
        yield as_role(dsn, owned_databases.owner)


@pytest.fixture(params=[SQLITE, POSTGRES])
def store_url(request: pytest.FixtureRequest) -> str:
    fixtures = {SQLITE: "sqlite_url", POSTGRES: "owned_postgres_url"}
    url: str = request.getfixturevalue(fixtures[request.param])
    return url


@pytest.fixture
def store(store_url: str) -> Iterator[Store]:
    with closing(open_store(store_url)) as opened:
        yield opened
        check_ledger(opened)
