"""A large database of each kind, filled once per session."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.plans.large_database import fill_postgres, fill_sqlite
from tests.support.postgres_roles import OwnedDatabases, as_role
from tests.support.postgres_server import GivenServer, PostgresServer


@dataclass(frozen=True)
class Large:
    """The URLs of one database. Its schema belongs to a plain role, to which row-level security applies."""

    superuser: str
    owner: str


@pytest.fixture(scope="session")
def large(postgres_server: PostgresServer | GivenServer) -> Iterator[Large]:
    databases = OwnedDatabases(postgres_server)
    databases.owner += "_of_the_large"  # other folders have their own owner, and each drops its own
    try:
        with databases.fresh() as url:
            fill_postgres(url)
            yield Large(url, as_role(url, databases.owner))
    finally:
        databases.close()


@pytest.fixture(scope="session")
def large_file(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    path = tmp_path_factory.mktemp("large") / "jobs.db"
    try:
        fill_sqlite(path)
        yield path
    finally:
        for each in path.parent.iterdir():
            each.unlink()  # pytest would keep the files of three runs
