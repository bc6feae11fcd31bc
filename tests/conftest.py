"""Fixtures for every test: real databases, each test its own. No server starts before a test asks for one."""

from __future__ import annotations

import gc
import os
import shutil
import signal
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from holdfast.stores.open import open_store
from tests.support.databases import TemplateDatabases
from tests.support.given_server import GivenServer
from tests.support.ledger import check_ledger
from tests.support.servers import PostgresServer

TESTS = Path(__file__).parent

# A run started in the background may have inherited "ignore" for Ctrl-C, and would hand it on to every process that
# the tests start and interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


# On a busy machine any example may stand still for a moment: none is judged by how long it takes.
settings.register_profile(
    "untimed", parent=settings.default, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("untimed")

# Files go to the processes in this order: those that take long first, or the last of them would be waited for alone.
FIRST = (
    *("model", "plans", "faults", "cli", "docs", "demo", "bench", "kit", "browser", "migration", "app"),
    *("http", "api", "telemetry", "dashboard", "egress"),
)

# What these test (signals, processes, programs, words) is the same on every store: on PostgreSQL only by `make soak`.
ANY_STORE = {
    *(
        "cli/test_processes.py",
        "cli/test_reload.py",
        "cli/test_decide.py",
        "cli/test_approvals.py",
        "cli/test_agents.py",
    ),
    *("app/test_commands.py", "app/test_child_processes.py", "app/test_processes.py", "app/test_steps_store_away.py"),
    *("api/test_tokens.py", "api/test_leases_rules.py", "cli/test_tokens.py"),
    *("kit/test_enqueued.py", "kit/test_processes.py", "kit/test_drain.py", "kit/test_people.py"),
    *("http/test_reserving.py", "docs/test_steps_guide.py"),
    "app/test_enqueue_refusals.py",  # before anything is asked of a store
    "docs/test_approvals_guide.py::test_the_tutorial_works_as_it_is_written",
    "cli/test_send_event.py::test_ways_to_say_it",  # on a SQLite file, whichever is asked for
    "cli/test_send_event.py::test_what_cannot_be_told",  # before anything is asked of a store
}
# What these test can differ between releases of PostgreSQL; the rest is run on 16 only by `make soak`.
ON_16 = {
    *("test_by_hand", "test_catalogue", "test_claim", "test_consumers", "test_crash", "test_enqueue", "test_gates"),
    *("test_keys", "test_late_commit", "test_leases", "test_ledger", "test_limits", "test_reads", "test_reaping"),
    *("test_schedules", "test_settle", "test_sql_rules", "test_subscriptions", "test_tenancy", "test_turn"),
    *("test_attacks", "test_workflows", "test_workflow_races", "test_retry_as", "test_reservations", "test_held"),
}


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """The thousands of tests that are collected stay to the end: nothing is gained by looking for garbage in them."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    places = {name: place for place, name in enumerate(FIRST)}
    items.sort(key=lambda item: places.get(item.path.relative_to(TESTS).parts[0], len(FIRST)))
    known = {item.nodeid for item in items}
    for item in items:
        if _is_repetition(item, known):
            item.add_marker(pytest.mark.soak)


def _is_repetition(item: pytest.Item, known: set[str]) -> bool:
    """The same test of what does not depend on the store is there for SQLite, or for another PostgreSQL."""
    if "[postgres16" in item.nodeid:
        return item.path.stem not in ON_16 and item.nodeid.replace("[postgres16", "[postgres") in known
    here = item.path.relative_to(TESTS).as_posix()
    alike = not ANY_STORE.isdisjoint((here, f"{here}::{item.nodeid.partition('::')[2].partition('[')[0]}"))
    return alike and "[postgres" in item.nodeid and item.nodeid.replace("[postgres", "[sqlite") in known


@contextmanager
def running(version: int) -> Iterator[PostgresServer]:
    server = PostgresServer(version, in_memory=True)
    try:
        server.start()
        yield server
    finally:
        server.destroy()


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file that was migrated once, to be copied: nobody opens it again."""
    path = tmp_path_factory.mktemp("template") / "jobs.db"
    with closing(open_store(f"sqlite:///{path}")) as store:
        store.migrate()
    return path


@pytest.fixture
def sqlite_url(tmp_path: Path, sqlite_template: Path) -> str:
    """A fresh, migrated SQLite file."""
    shutil.copyfile(sqlite_template, tmp_path / "jobs.db")
    return f"sqlite:///{tmp_path}/jobs.db"


@pytest.fixture
def new_sqlite_url(tmp_path: Path) -> str:
    """A SQLite file that does not exist yet, for tests of beginnings."""
    return f"sqlite:///{tmp_path}/jobs.db"


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer | GivenServer]:
    """PostgreSQL 18, or the server that HOLDFAST_TEST_POSTGRES names."""
    given = os.environ.get("HOLDFAST_TEST_POSTGRES")
    if given:
        theirs = GivenServer(given)
        yield theirs
        theirs.disconnect()
        return
    with running(18) as server:
        yield server


@pytest.fixture(scope="session")
def postgres_server_16() -> Iterator[PostgresServer]:
    """PostgreSQL 16, the oldest that is at hand."""
    with running(16) as server:
        yield server


@pytest.fixture(scope="session")
def own_server() -> Iterator[PostgresServer]:
    """PostgreSQL 18 for tests that stop it: nobody else's."""
    with running(18) as server:
        yield server


@pytest.fixture(scope="session")
def postgres_databases(postgres_server: PostgresServer | GivenServer) -> Iterator[TemplateDatabases]:
    databases = TemplateDatabases(postgres_server)
    yield databases
    databases.close()


@pytest.fixture(scope="session")
def postgres_databases_16(postgres_server_16: PostgresServer) -> Iterator[TemplateDatabases]:
    databases = TemplateDatabases(postgres_server_16)
    yield databases
    databases.close()


@pytest.fixture
def postgres_url(postgres_databases: TemplateDatabases) -> Iterator[str]:
    """A fresh, migrated database."""
    with postgres_databases.fresh() as dsn:
        yield dsn


@pytest.fixture
def postgres_url_16(postgres_databases_16: TemplateDatabases) -> Iterator[str]:
    """A fresh, migrated database on PostgreSQL 16."""
    with postgres_databases_16.fresh() as dsn:
        yield dsn


@pytest.fixture
def empty_postgres_url(postgres_databases: TemplateDatabases) -> Iterator[str]:
    """A fresh database with nothing in it, for tests of the migrations."""
    with postgres_databases.empty() as dsn:
        yield dsn


@pytest.fixture
def own_url(own_server: PostgresServer, request: pytest.FixtureRequest) -> Iterator[str]:
    """A migrated database on a server that may be stopped. Afterwards every ledger is replayed."""
    name = f"own_{abs(hash(request.node.name)):x}"
    url = own_server.create_database(name)
    with closing(open_store(url)) as store:
        store.migrate()
    yield url
    own_server.start()  # a test that failed may have left it down
    with closing(open_store(url)) as store:
        check_ledger(store)
    own_server.drop_database(name)
