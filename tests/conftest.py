"""Fixtures for every test: each test has its own real database. A server starts when the first test needs it.

tests/support/tiers.py decides which tests run, and with which seed.
"""

from __future__ import annotations

import gc
import logging
import os
import shutil
import signal
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture import providers

from holdfast.features.assembly import Store, open_store
from tests.support.direct_sql import ByHand, open_by_hand
from tests.support.ledger import check_ledger
from tests.support.postgres_binaries import MEMORY, debian_bin, has_room
from tests.support.postgres_databases import TemplateDatabases
from tests.support.postgres_server import GivenServer, PostgresServer

TESTS = Path(__file__).parent

pytest_plugins = ["tests.support.tiers", "tests.support.frozen"]

FOR_TESTS = {"HOLDFAST_SCREENSHOTS", "HOLDFAST_TEST_SQL_COVERAGE"}

# A run started in the background may have inherited "ignore" for Ctrl-C, which every process that the tests start and
# interrupt would inherit too.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


# On a busy machine any example may pause, so examples have no deadline. Nor does a seed fail because many of its
# examples are too large or filtered out.
settings.register_profile(
    "untimed",
    parent=settings.default,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
)
settings.load_profile("untimed")

# Hypothesis also tries constants of the project modules that are imported so far. Then a seed would give other examples
# in another order of tests, and reading the modules takes seconds in each process.
providers._get_local_constants = lambda: providers._local_constants

# Settings of the developer must not reach the tests.
for _name in [name for name in os.environ if name.startswith("HOLDFAST_") and name not in FOR_TESTS]:
    del os.environ[_name]

# Keep SQLite files in memory if there is space: they are synchronised as usual, but faster. `--basetemp` overrides it.
if has_room(MEMORY):
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", MEMORY)

# Slow folders go to the processes first, otherwise the run would wait for the last of them.
FIRST = (
    *("model", "plans", "faults", "cli", "docs", "demo", "bench", "kit", "browser", "migration", "app"),
    *("http", "api", "telemetry", "dashboard", "egress"),
)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--postgres",
        default="18",
        metavar="SERVER",
        help="the PostgreSQL to test on: 16 or 18 (from a wheel), 14, 15 or 17 (from npm), 'debian' (the newest that"
        " the system's packages have installed, with JIT), a folder with the programs of a server, or the URL of a"
        " running server",
    )


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """The collected tests stay until the end: garbage collection among them gains nothing."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    ranks = {name: rank for rank, name in enumerate(FIRST)}
    items.sort(key=lambda item: ranks.get(item.path.relative_to(TESTS).parts[0], len(FIRST)))


@pytest.fixture(autouse=True)
def _settings_stay() -> Iterator[None]:
    """Fail a test that leaves a setting behind, and restore the root logger: a later test would depend on the order."""
    before, root = _holdfast_settings(), logging.getLogger()
    level, handlers = root.level, set(root.handlers)
    yield
    root.setLevel(level)  # frameworks configure the root logger
    for handler in set(root.handlers) - handlers:
        if not type(handler).__module__.startswith("_pytest"):
            root.removeHandler(handler)
    after = _holdfast_settings()
    if after != before:
        for name in before.keys() | after.keys():
            os.environ.pop(name, None)
        os.environ.update(before)
        pytest.fail(f"the test left these variables changed: {sorted(before.items() ^ after.items())}")


def _holdfast_settings() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name.startswith("HOLDFAST_")}


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A migrated file to be copied; no test opens it."""
    path = tmp_path_factory.mktemp("template") / "jobs.db"
    with closing(open_store(f"sqlite:///{path}")) as store:
        store.migrate()
    return path


@pytest.fixture
def sqlite_url(tmp_path: Path, sqlite_template: Path) -> str:
    """A fresh, migrated SQLite file, which only its owner can read, like those that Holdfast creates."""
    shutil.copy(sqlite_template, tmp_path / "jobs.db")
    return f"sqlite:///{tmp_path}/jobs.db"


@pytest.fixture
def new_sqlite_url(tmp_path: Path) -> str:
    """A SQLite file that does not exist yet."""
    return f"sqlite:///{tmp_path}/jobs.db"


@contextmanager
def running(choice: str) -> Iterator[PostgresServer]:
    """The server that `--postgres` names, started for this process.

    Processes of a run do not share a server: a transaction that one test holds open would hide events from the
    consumers of every other test, and roles belong to the whole server.
    """
    programs = None
    if choice == "debian":
        programs = debian_bin()
        if programs is None:
            pytest.skip("no PostgreSQL server from the system's packages is installed")
    elif not choice.isdigit():
        programs = Path(choice)
    server = PostgresServer(int(choice) if choice.isdigit() else 0, programs=programs, in_memory=True)
    try:
        server.start()
        yield server
    finally:
        server.destroy()


@pytest.fixture(scope="session")
def postgres_server(pytestconfig: pytest.Config) -> Iterator[PostgresServer | GivenServer]:
    """The PostgreSQL of this run (`--postgres`)."""
    choice = pytestconfig.getoption("--postgres")
    if "://" in choice:
        external = GivenServer(choice)
        yield external
        external.disconnect()
        return
    with running(choice) as server:
        yield server


@pytest.fixture(scope="session")
def own_server(pytestconfig: pytest.Config) -> Iterator[PostgresServer]:
    """A second server of the same release, for tests that stop it."""
    choice = pytestconfig.getoption("--postgres")
    with running("18" if "://" in choice else choice) as server:
        yield server


@pytest.fixture(scope="session")
def postgres_databases(postgres_server: PostgresServer | GivenServer) -> Iterator[TemplateDatabases]:
    databases = TemplateDatabases(postgres_server)
    yield databases
    databases.close()


@pytest.fixture
def postgres_url(postgres_databases: TemplateDatabases) -> Iterator[str]:
    """A fresh, migrated database."""
    with postgres_databases.fresh() as dsn:
        yield dsn


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest) -> str:
    """A fresh, migrated database of each kind."""
    value: str = request.getfixturevalue(f"{request.param}_url")
    return value


@pytest.fixture
def by_hand(store: Store) -> Iterator[ByHand]:
    """The database of the fixture `store`, for SQL written by hand."""
    with closing(open_by_hand(store.url)) as connection:
        yield connection


@pytest.fixture
def empty_postgres_url(postgres_databases: TemplateDatabases) -> Iterator[str]:
    """A new, empty database, for tests of migrations."""
    with postgres_databases.empty() as dsn:
        yield dsn


@pytest.fixture
def own_url(own_server: PostgresServer, request: pytest.FixtureRequest) -> Iterator[str]:
    """A migrated database on a server that may be stopped. Afterwards the ledger is checked."""
    name = f"own_{abs(hash(request.node.name)):x}"
    url = own_server.create_database(name)
    with closing(open_store(url)) as store:
        store.migrate()
    yield url
    own_server.start()  # a failed test may have left it stopped
    with closing(open_store(url)) as store:
        check_ledger(store)
    own_server.drop_database(name)
