"""Empty databases on each store."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.postgres_databases import TemplateDatabases


@pytest.fixture(params=["sqlite", "postgres"])
def kind(request: pytest.FixtureRequest) -> str:
    result: str = request.param
    return result


@pytest.fixture
def empty_urls(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[tuple[str, str]]:
    """Two empty databases."""
    if kind == "sqlite":
        yield f"sqlite:///{tmp_path}/one.db", f"sqlite:///{tmp_path}/two.db"
        return
    databases: TemplateDatabases = request.getfixturevalue("postgres_databases")
    with databases.empty() as one, databases.empty() as two:
        yield one, two


@pytest.fixture
def empty_url(empty_urls: tuple[str, str]) -> str:
    return empty_urls[0]


@pytest.fixture
def other_url(empty_urls: tuple[str, str]) -> str:
    return empty_urls[1]
