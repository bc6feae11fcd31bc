"""Two large databases, filled at the same time and once for all tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.plans.filling import fill_postgres, fill_sqlite
from tests.support.given_server import GivenServer
from tests.support.owners import OwnedDatabases, as_role
from tests.support.servers import PostgresServer


@dataclass(frozen=True)
class Large:
    """Where they are. On PostgreSQL the schema belongs to a plain role, whom row-level security binds."""

    sqlite: Path
    superuser: str
    owner: str


@pytest.fixture(scope="session")
def large(tmp_path_factory: pytest.TempPathFactory, postgres_server: PostgresServer | GivenServer) -> Iterator[Large]:
    path = tmp_path_factory.mktemp("large") / "jobs.db"
    databases = OwnedDatabases(postgres_server)
    databases.owner += "_of_the_large"  # other folders have theirs, and each drops its own
    try:
        with databases.fresh() as url, ThreadPoolExecutor(1) as beside:
            filling = beside.submit(fill_sqlite, path)
            fill_postgres(url)
            filling.result()
            yield Large(path, url, as_role(url, databases.owner))
    finally:
        databases.close()
        for each in path.parent.iterdir():
            each.unlink()  # pytest would keep three of them
