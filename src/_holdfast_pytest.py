"""The pytest plugin: three fixtures, an option and two settings; see docs/guides/testing.md.

It stands beside the package and not in it: pytest imports its plugins in every run, also in those of people who have
Holdfast installed and test something else. Nothing of Holdfast is imported before a test asks for a fixture.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from holdfast import App
    from holdfast.testing import Kit


def pytest_addoption(parser: pytest.Parser) -> None:
    what = "the PostgreSQL database in which holdfast_kit makes its schemas; else it is a temporary SQLite file"
    parser.getgroup("holdfast").addoption("--holdfast-url", metavar="URL", help=what)
    parser.addini("holdfast_url", help=what)
    parser.addini("holdfast_app", help="the app of the fixture holdfast_kit, for example shop.jobs:app")


@pytest.fixture(scope="session")
def holdfast_app(pytestconfig: pytest.Config) -> App:
    """The app under test, as the setting holdfast_app names it. Define a fixture of this name to give another."""
    name = pytestconfig.getini("holdfast_app")
    if not name:
        raise pytest.UsageError(
            "holdfast_kit does not know which app it is for: set holdfast_app = shop.jobs:app in the settings of"
            " pytest, or define a fixture holdfast_app that returns it"
        )
    from holdfast.app.import_path import find_app

    return find_app(name)


@pytest.fixture(scope="session")
def holdfast_url(pytestconfig: pytest.Config) -> str | None:
    """Where the private databases are made: None for temporary SQLite files."""
    return pytestconfig.getoption("--holdfast-url") or pytestconfig.getini("holdfast_url") or None


@pytest.fixture
def holdfast_kit(holdfast_app: App, holdfast_url: str | None) -> Iterator[Kit]:
    """The app on a private database of this test."""
    from holdfast.testing import Kit

    with Kit(holdfast_app, holdfast_url) as kit:
        yield kit
