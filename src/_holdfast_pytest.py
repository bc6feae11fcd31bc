"""The pytest plugin: three fixtures, an option and two settings. docs/guides/testing.md explains them.

The module is beside the package because pytest imports its plugins in every run, also where Holdfast is installed but
not used. Holdfast itself is imported only when a test requests a fixture.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from holdfast import App
    from holdfast.testing import Kit


def pytest_addoption(parser: pytest.Parser) -> None:
    what = "PostgreSQL database for the schemas of holdfast_kit; without it, each test has a temporary SQLite file"
    parser.getgroup("holdfast").addoption("--holdfast-url", metavar="URL", help=what)
    parser.addini("holdfast_url", help=what)
    parser.addini("holdfast_app", help="app under test for the fixture holdfast_kit, for example shop.jobs:app")


@pytest.fixture(scope="session")
def holdfast_app(pytestconfig: pytest.Config) -> App:
    """Return the app that the setting holdfast_app names. Override the fixture to return another one."""
    name = pytestconfig.getini("holdfast_app")
    if not name:
        raise pytest.UsageError(
            "holdfast_kit needs an app: set holdfast_app = shop.jobs:app in the settings of pytest, or define a"
            " fixture holdfast_app that returns it"
        )
    from holdfast.app.import_path import find_app

    return find_app(name)


@pytest.fixture(scope="session")
def holdfast_url(pytestconfig: pytest.Config) -> str | None:
    """Return the database in which the private schemas are created; None for temporary SQLite files."""
    return pytestconfig.getoption("--holdfast-url") or pytestconfig.getini("holdfast_url") or None


@pytest.fixture
def holdfast_kit(holdfast_app: App, holdfast_url: str | None) -> Iterator[Kit]:
    """Yield a ``holdfast.testing.Kit``: the app, on a private database for this test."""
    from holdfast.testing import Kit

    with Kit(holdfast_app, holdfast_url) as kit:
        yield kit
