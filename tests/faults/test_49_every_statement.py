"""Fault 49: a fault of a SQLite file starts at the k-th statement, for every k.

Another connection holds the write lock, the disk is full or broken, no file can be opened, or the process is killed
(``sqlite_faults``). A program that can wait does; otherwise it gets an error code, and nothing was done. Nothing is
lost, done twice or left open.

The ordinary run takes random statements (`choice`), the soak takes all of them.
"""

from __future__ import annotations

import itertools
import json
import random
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path

import pytest
from typer.testing import CliRunner

from holdfast import App
from holdfast.cli.commands import app as commands
from holdfast.errors import StoreUnavailable
from holdfast.features.assembly import open_store
from holdfast.stores.sqlite.connections import StoreConnection
from tests.app.notes import prepare_notes
from tests.faults.database_links import SqliteFiles, SqliteProcessLink, check_unlocked, sqlite_link
from tests.faults.every_point import FORMS, check_maintenance, every, points, threads
from tests.faults.scenarios import WRITES, MaintenanceScenario, Server, WorkerScenario
from tests.faults.sqlite_client_calls import SQLITE_CLIENT_CALLS
from tests.faults.sqlite_faults import BUSY_TIMEOUT, FAULT_KINDS, Fault, FaultKind, busy_timeout, watching
from tests.support.caller_connections import path_of
from tests.support.waiting import until

pytestmark = pytest.mark.req("CX-15", "DP-7", "DP-8", "SC-11", "SC-19", "DP-22")

SURVIVED = FAULT_KINDS[:-1]
CODES = {"held": "database_locked", "full": "disk_full", "broken": "store_unavailable", "handles": "store_unavailable"}
"""The error codes of programs that cannot wait; the other faults cause no error."""
DURATION = 0.3
LOCK = "BEGIN IMMEDIATE"
STAYING = "holdfast-job"


# -- client calls -------------------------------------------------------------------------------------------------


class Client:
    """Runs client calls on one file, each with its own tenant."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._numbers = itertools.count(1)
        prepare_notes(url)

    def run(self, name: str, form: str, fault: Fault | None) -> int:
        call, tenant = SQLITE_CLIENT_CALLS[name], f"t{next(self._numbers)}"
        running = threads(STAYING)
        kind = None if fault is None else fault[1]
        with watching(self.url) as injector, closing(App(self.url, tenant=tenant)) as direct:
            direct.jobs.list()  # opens a connection, as in a program that has run for a while
            before = injector.requests
            with busy_timeout(BUSY_TIMEOUT if kind == "held" else 60.0):
                concurrent = threading.Thread(target=call.concurrent or str, args=(direct,), daemon=True)
                app = App(self.url, tenant=tenant)
                if fault is not None:
                    injector.inject(fault, 30.0 if kind == "held" and call.atomic else DURATION)
                concurrent.start()
                response = call.run(app, form)
                statements = injector.requests - before
                injector.clear()
            if call.concurrent is not None and isinstance(response, Exception):
                direct.enqueue("x")  # the concurrent thread waits for a job
            concurrent.join(30)
            error = response if isinstance(response, Exception) else None
            _check_error(name, kind, error)
            if error is not None and call.atomic:
                assert not direct.jobs.list()
                assert not direct.workflows.list()
            elif error is None or call.concurrent is None:
                call.check(direct, response)
            assert not any(_in_transaction(each) for each in injector.connections)
        until(lambda: not threads(STAYING) - running, "its threads end")
        check_unlocked(path_of(self.url))
        return statements


def _check_error(name: str, kind: FaultKind | None, error: Exception | None) -> None:
    """An error has the code of its fault; short faults cause none."""
    if error is None:
        return
    if name == "connection, after read" and kind not in CODES:
        # The transaction has an old snapshot of the file and must be restarted.
        assert isinstance(error, StoreUnavailable), repr(error)
        assert error.code == "database_locked", repr(error)
        return
    assert kind in CODES, f"needless error: {error!r}"
    if isinstance(error, StoreUnavailable):
        assert error.code == CODES[kind], repr(error)
    else:
        assert name.startswith("connection"), repr(error)  # from a statement of the application


def _in_transaction(connection: StoreConnection) -> bool:
    try:
        return connection.in_transaction
    except sqlite3.ProgrammingError:
        return False


@pytest.mark.slow
@FORMS
@pytest.mark.req("DP-5", "HF-3")
def test_client_calls_survive_faults_at_some_statements(sqlite_url: str, choice: random.Random, form: str) -> None:
    client = Client(sqlite_url)
    for name in SQLITE_CLIENT_CALLS:
        fault = (choice.randint(1, 130 if name == "tick" else 16), choice.choice(SURVIVED))
        print(name, fault)
        client.run(name, form, fault)


@pytest.mark.soak
@pytest.mark.timeout(3000)
@FORMS
@pytest.mark.parametrize("name", SQLITE_CLIENT_CALLS)
@pytest.mark.req("DP-5", "HF-3")
def test_client_call_survives_fault_at_every_statement(sqlite_url: str, name: str, form: str) -> None:
    client = Client(sqlite_url)
    statements = client.run(name, form, None)
    every(points(statements, SURVIVED), lambda fault: client.run(name, form, fault))


# -- maintenance --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def maintenance(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MaintenanceScenario]:
    scenario = MaintenanceScenario(partial(SqliteFiles, tmp_path_factory.mktemp("maintenance")), sqlite_link)
    yield scenario
    scenario.close()


@pytest.mark.slow
@pytest.mark.req("DP-16", "HK-5")
def test_maintenance_survives_faults_at_some_statements(
    maintenance: MaintenanceScenario, choice: random.Random
) -> None:
    check_maintenance(maintenance, lambda _: [(choice.randint(1, 180), choice.choice(SURVIVED)) for _ in range(3)])


@pytest.mark.soak
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("kind", SURVIVED)
@pytest.mark.req("DP-16", "HK-5")
def test_maintenance_survives_fault_at_every_statement(maintenance: MaintenanceScenario, kind: FaultKind) -> None:
    check_maintenance(maintenance, lambda statements: points(statements, [kind]))


# -- a worker, from its start to its shutdown --------------------------------------------------------------------


class SqliteWorkerScenario(WorkerScenario):
    statements: list[str]
    """The statements of the last run."""

    def __init__(self, folder: Path) -> None:
        # The duration is longer than a lease of one second.
        super().__init__(partial(SqliteFiles, folder), folder, self._recording_link, duration=1.3)

    @contextmanager
    def _recording_link(self, url: str, folder: Path) -> Iterator[SqliteProcessLink]:
        with SqliteProcessLink(url, folder) as link:
            yield link
            self.statements = link.statements

    def faults(self, kind: FaultKind) -> list[Fault]:
        """Return a fault at the first run of each statement, and at every run of the one that takes the lock."""
        locks: list[Fault] = [(number, kind, LOCK) for number in range(1, self.statements.count(LOCK) + 1)]
        return [*locks, *((1, kind, text) for text in dict.fromkeys(self.statements) if text != LOCK)]


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SqliteWorkerScenario]:
    scenario = SqliteWorkerScenario(tmp_path_factory.mktemp("worker"))
    yield scenario
    scenario.close()


@pytest.mark.slow
@pytest.mark.parametrize("at_shutdown", [False, True])
def test_worker_survives_faults_at_some_statements(
    worker: SqliteWorkerScenario, choice: random.Random, at_shutdown: bool
) -> None:
    fault = (choice.randint(1, 6 if at_shutdown else 500), choice.choice(SURVIVED if at_shutdown else FAULT_KINDS))
    print(fault)
    worker.run(fault, at_shutdown=at_shutdown)


@pytest.mark.soak
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("kind", FAULT_KINDS)
def test_worker_survives_fault_at_every_statement(worker: SqliteWorkerScenario, kind: FaultKind) -> None:
    worker.run(None)
    every(worker.faults(kind), worker.run)


@pytest.mark.soak
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("kind", SURVIVED)
@pytest.mark.req("SC-13")
def test_worker_shutdown_survives_fault_at_every_statement(worker: SqliteWorkerScenario, kind: FaultKind) -> None:
    statements = max(worker.run(None, at_shutdown=True) for _ in range(2))
    every(points(statements, [kind]), lambda each: worker.run(each, at_shutdown=True))


# -- the HTTP server ----------------------------------------------------------------------------------------------


@pytest.fixture
def server(sqlite_url: str, folder: Path) -> Iterator[Server]:
    with SqliteProcessLink(sqlite_url, folder) as link:
        server = Server(sqlite_url, link, folder, reliable=False, codes={*CODES.values()})
        try:
            yield server
        finally:
            server.stop()
    check_unlocked(path_of(sqlite_url))


def get_page(server: Server, path: str, fault: Fault) -> None:
    """Request a page; a read is not affected by a lock."""
    response = server.request("GET", path, fault)
    assert response.status_code < 500 or fault[1] not in ("held", "short", "written"), response.text


@pytest.mark.slow
@pytest.mark.req("JF-14", "DP-22")
def test_http_server_survives_faults_at_some_statements(server: Server, choice: random.Random) -> None:
    for path in choice.sample(server.pages(), 6):
        fault = (choice.randint(1, 12), choice.choice(SURVIVED))
        print(path, fault)
        get_page(server, path, fault)
    for name, write in WRITES.items():
        fault = (choice.randint(1, 9), choice.choice(SURVIVED))
        print(name, fault)
        write(server, fault)
    assert server.http.get("/readyz").status_code == 200


@pytest.mark.soak
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("kind", SURVIVED)
@pytest.mark.req("JF-14", "DP-22")
def test_every_page_survives_fault_at_every_statement(server: Server, kind: FaultKind) -> None:
    for path in server.pages():
        every(points(server.count_requests("GET", path), [kind]), partial(get_page, server, path))


@pytest.mark.soak
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("name", WRITES)
@pytest.mark.req("JF-14", "DP-22")
def test_http_write_survives_fault_at_every_statement(server: Server, name: str) -> None:
    every(points(29, SURVIVED), lambda each: WRITES[name](server, each))


# -- the command line ---------------------------------------------------------------------------------------------

COMMANDS = (
    ("jobs", "list"),
    ("health",),
    ("doctor",),
    ("queues", "list"),
    ("enqueue", "x", '{"n": 1}'),
    ("limits", "set", "--queue", "default", "--concurrency", "3"),
    ("pause", "--queue", "default", "--reason", "because"),
    ("send-event", "shipped", "{}"),
    ("migrate",),
)


def run_command(url: str, command: Sequence[str], fault: Fault | None) -> int:
    """Run a command, which succeeds or prints the error code of the fault. Returns the number of statements."""
    with watching(url) as injector, busy_timeout(BUSY_TIMEOUT if fault is not None and fault[1] == "held" else 60.0):
        if fault is not None:
            injector.inject(fault, 30.0 if fault[1] == "held" else DURATION)
        run = CliRunner().invoke(commands, [*command, "--url", url, "--json"], prog_name="holdfast")
        statements = injector.requests
        injector.clear()
        assert not any(_in_transaction(each) for each in injector.connections)
    stderr = run.stderr.strip()
    if run.exit_code == 1 and stderr.startswith('{"error"'):
        assert fault is not None
        assert fault[1] in CODES, stderr
        assert json.loads(stderr)["error"]["code"] == CODES[fault[1]], stderr
    else:
        assert run.exit_code == 0, (run.exit_code, run.output, run.exception)
    check_unlocked(path_of(url))
    return statements


def test_commands_survive_faults_at_some_statements(sqlite_url: str, choice: random.Random) -> None:
    for command in choice.sample(COMMANDS, 4):
        fault = (choice.randint(1, 20), choice.choice(SURVIVED))
        print(command, fault)
        run_command(sqlite_url, command, fault)


@pytest.mark.soak
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_command_survives_fault_at_every_statement(sqlite_url: str, command: Sequence[str]) -> None:
    statements = run_command(sqlite_url, command, None)
    every(points(statements, SURVIVED), lambda fault: run_command(sqlite_url, command, fault))


# -- migrations ---------------------------------------------------------------------------------------------------


def migrate(url: str, fault: Fault | None) -> tuple[bool, int]:
    """Migrate with a fault. Returns whether the schema is complete, otherwise it is empty; and the statements."""
    kind = None if fault is None else fault[1]
    with watching(url) as injector, busy_timeout(BUSY_TIMEOUT if kind == "held" else 60.0):
        if fault is not None:
            injector.inject(fault, 30.0 if kind == "held" else DURATION)
        with closing(open_store(url)) as store:
            error = None
            try:
                store.migrate()
            except StoreUnavailable as refused:
                error = refused
            _check_error("migration", kind, error)
            statements = injector.requests
            injector.clear()
            assert not any(_in_transaction(each) for each in injector.connections)
            status = store.schema()
    assert status.current or not status.applied, status
    check_unlocked(path_of(url))
    return status.current, statements


@pytest.mark.req("DP-20")
def test_migration_survives_faults_at_some_statements(tmp_path: Path, choice: random.Random) -> None:
    for n, most in enumerate((12, 500, 500)):
        fault, url = (choice.randint(1, most), choice.choice(SURVIVED)), f"sqlite:///{tmp_path}/{n}.db"
        print(fault)
        migrate(url, fault)
        assert migrate(url, None)[0]


@pytest.mark.soak
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("kind", SURVIVED)
@pytest.mark.req("DP-20")
def test_migration_is_atomic_at_every_statement(tmp_path: Path, kind: FaultKind) -> None:
    """A failed migration leaves nothing, and the next one starts from the beginning."""
    _, statements = migrate(f"sqlite:///{tmp_path}/complete.db", None)
    complete = schema(tmp_path / "complete.db")
    faults = points(statements, [kind])
    for n in itertools.count():
        url = f"sqlite:///{tmp_path}/{n}.db"
        while faults and not migrate(url, faults.pop())[0]:
            pass
        assert migrate(url, None)[0]
        assert schema(tmp_path / f"{n}.db") == complete
        if not faults:
            return


def schema(path: Path) -> list[tuple[object, ...]]:
    with closing(sqlite3.connect(path)) as connection:
        query = "select type, name, sql from sqlite_master where name <> 'beside' order by 1, 2"
        return connection.execute(query).fetchall()
