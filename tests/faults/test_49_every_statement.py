"""Fault 49: something is wrong with a SQLite file from its k-th statement on, for every k there is.

Another has the write lock, the disk is full or broken, nothing can be opened, the process is killed (``trouble``). Who
can wait does; who cannot is told so by a code, and nothing was done. Nothing is lost, done twice or left half open.

The ordinary run takes some at random (`choice`), the soak takes every one.
"""

from __future__ import annotations

import itertools
import json
import random
import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
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
from tests.faults.chores import Household
from tests.faults.errands_on_a_file import ON_A_FILE
from tests.faults.on_a_file import Files, Here, There, free
from tests.faults.serving import WRITES, Service, pages
from tests.faults.trouble import FATES, WAITING, Fate, Trouble, waiting, watching
from tests.faults.workplace import Workplace
from tests.support.caller_connections import path_of
from tests.support.waiting import until

pytestmark = pytest.mark.req("CX-15", "DP-7", "DP-8", "SC-11", "SC-19", "DP-22")

SURVIVED = FATES[:-1]
CODES = {"held": "database_locked", "full": "disk_full", "broken": "store_unavailable", "handles": "store_unavailable"}
"""What is said of it by those who cannot wait; of the others there is nothing to say."""
LASTS = 0.3
LOCK = "BEGIN IMMEDIATE"


def every(troubles: Sequence[Trouble], run: Callable[[Trouble], object]) -> None:
    """All of them, also behind one that fails: those that fail together have one reason."""
    failed = []
    for trouble in troubles:
        try:
            run(trouble)
        except Exception as error:
            failed.append(f"--- {trouble[1]} {trouble[0]}: {type(error).__name__} {error}")
    assert not failed, f"{len(failed)} of {len(troubles)}\n" + "\n".join(failed)


# -- whoever asks for something -----------------------------------------------------------------------------------


class Shop:
    """One file, and a tenant for each errand that is run."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._numbers = itertools.count(1)
        prepare_notes(url)

    def through(self, name: str, colour: str, trouble: Trouble | None) -> int:
        errand, tenant = ON_A_FILE[name], f"t{next(self._numbers)}"
        threads = _threads()
        fate = None if trouble is None else trouble[1]
        with watching(self.url) as watch, closing(App(self.url, tenant=tenant)) as outside:
            outside.jobs.list()  # a connection is open, as in a program that has run for a while
            before = watch.asked
            with waiting(WAITING if fate == "held" else 60.0):
                beside = threading.Thread(target=errand.beside or str, args=(outside,), daemon=True)
                app = App(self.url, tenant=tenant)
                if trouble is not None:
                    watch.expect(trouble, 30.0 if fate == "held" and errand.whole else LASTS)
                beside.start()
                told = errand.tell(app, colour)
                asked = watch.asked - before
                watch.over()
            if errand.beside is not None and isinstance(told, Exception):
                outside.enqueue("x")  # which is what the other waits for
            beside.join(30)
            error = told if isinstance(told, Exception) else None
            _explained(name, fate, error)
            if error is not None and errand.whole:
                assert not outside.jobs.list()
                assert not outside.workflows.list()
            elif error is None or errand.beside is None:
                errand.true(outside, told)
            assert not any(_is_in_a_transaction(each) for each in watch.connections)
        until(lambda: not _threads() - threads, "its threads end")
        free(path_of(self.url))
        return asked


def _explained(name: str, fate: Fate | None, error: Exception | None) -> None:
    """Who is told of trouble is told which; of what is over in a moment nobody is told."""
    if error is None:
        return
    if name == "borrowed, having read" and fate not in CODES:
        # Its transaction has seen the file as it was before, and has to begin anew.
        assert isinstance(error, StoreUnavailable), repr(error)
        assert error.code == "database_locked", repr(error)
        return
    assert fate in CODES, f"it could have been done: {error!r}"
    if isinstance(error, StoreUnavailable):
        assert error.code == CODES[fate], repr(error)
    else:
        assert name.startswith("borrowed"), repr(error)  # of a statement of its own


def _is_in_a_transaction(connection: StoreConnection) -> bool:
    try:
        return connection.in_transaction
    except sqlite3.ProgrammingError:
        return False


def _threads() -> set[threading.Thread]:
    """But for those that stay for a while in case there is another job for them."""
    return {each for each in threading.enumerate() if not each.name.startswith("holdfast-job")}


COLOURS = pytest.mark.parametrize("colour", ["sync", "async"])


@pytest.mark.slow
@COLOURS
@pytest.mark.req("DP-5", "HF-3")
def test_some_statements_of_each_errand(sqlite_url: str, choice: random.Random, colour: str) -> None:
    shop = Shop(sqlite_url)
    for name in ON_A_FILE:
        trouble = (choice.randint(1, 130 if name == "tick" else 16), choice.choice(SURVIVED))
        print(name, trouble)
        shop.through(name, colour, trouble)


@pytest.mark.soak
@pytest.mark.timeout(3000)
@COLOURS
@pytest.mark.parametrize("name", ON_A_FILE)
@pytest.mark.req("DP-5", "HF-3")
def test_every_statement_of_an_errand(sqlite_url: str, name: str, colour: str) -> None:
    shop = Shop(sqlite_url)
    asked = shop.through(name, colour, None)
    troubles = [(number, fate) for fate in SURVIVED for number in range(1, asked + 1)]
    every(troubles, lambda trouble: shop.through(name, colour, trouble))


# -- what is done on the side -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def household(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Household]:
    made = Household(partial(Files, tmp_path_factory.mktemp("household")), Here)
    yield made
    made.close()


@pytest.mark.slow
@pytest.mark.req("DP-16", "HK-5")
def test_some_statements_of_the_duties(household: Household, choice: random.Random) -> None:
    _, ends = household.through(None)
    for _ in range(3):
        trouble = (choice.randint(1, 180), choice.choice(SURVIVED))
        print(trouble)
        assert household.through(trouble)[1] == ends


@pytest.mark.soak
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("fate", SURVIVED)
@pytest.mark.req("DP-16", "HK-5")
def test_every_statement_of_the_duties(household: Household, fate: Fate) -> None:
    asked, ends = household.through(None)

    def through(trouble: Trouble) -> None:
        found = household.through(trouble)[1]
        assert found == ends, (found - ends, ends - found)

    every([(number, fate) for number in range(1, asked + 1)], through)


# -- a worker, from its start to its leaving ---------------------------------------------------------------------


class Workshop(Workplace):
    asked: list[str]
    """What its worker asked for the last time."""

    def __init__(self, folder: Path) -> None:
        super().__init__(partial(Files, folder), folder, self._noting, silence=1.3)  # longer than a lease of a second

    @contextmanager
    def _noting(self, url: str, folder: Path) -> Iterator[There]:
        with There(url, folder) as line:
            yield line
            self.asked = line.statements

    def troubles(self, fate: Fate) -> list[Trouble]:
        """Each statement that there is, the first time it is asked; and each that takes the lock."""
        locks: list[Trouble] = [(number, fate, LOCK) for number in range(1, self.asked.count(LOCK) + 1)]
        return [*locks, *((1, fate, text) for text in dict.fromkeys(self.asked) if text != LOCK)]


@pytest.fixture(scope="module")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workshop]:
    made = Workshop(tmp_path_factory.mktemp("workshop"))
    yield made
    made.close()


@pytest.mark.slow
@pytest.mark.parametrize("leaving", [False, True])
def test_some_statements_of_a_worker(workshop: Workshop, choice: random.Random, leaving: bool) -> None:
    trouble = (choice.randint(1, 6 if leaving else 500), choice.choice(SURVIVED if leaving else FATES))
    print(trouble)
    workshop.through(trouble, leaving=leaving)


@pytest.mark.soak
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("fate", FATES)
def test_every_statement_of_a_worker(workshop: Workshop, fate: Fate) -> None:
    workshop.through(None)
    every(workshop.troubles(fate), workshop.through)


@pytest.mark.soak
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("fate", SURVIVED)
@pytest.mark.req("SC-13")
def test_every_statement_of_a_worker_that_leaves(workshop: Workshop, fate: Fate) -> None:
    asked = max(workshop.through(None, leaving=True) for _ in range(2))
    every([(number, fate) for number in range(1, asked + 1)], lambda each: workshop.through(each, leaving=True))


# -- the service --------------------------------------------------------------------------------------------------


@pytest.fixture
def service(sqlite_url: str, folder: Path) -> Iterator[Service]:
    with There(sqlite_url, folder) as line:
        service = Service(sqlite_url, line, folder, sure=False, codes={*CODES.values()})
        try:
            yield service
        finally:
            service.stop()
    free(path_of(sqlite_url))


def look(service: Service, path: str, trouble: Trouble) -> None:
    """Who only reads has nothing to do with a lock."""
    answer = service.ask("GET", path, trouble)
    assert answer.status_code < 500 or trouble[1] not in ("held", "short", "written"), answer.text


@pytest.mark.slow
@pytest.mark.req("JF-14", "DP-22")
def test_some_statements_of_the_service(service: Service, choice: random.Random) -> None:
    for path in choice.sample(pages(service), 6):
        trouble = (choice.randint(1, 12), choice.choice(SURVIVED))
        print(path, trouble)
        look(service, path, trouble)
    for name, write in WRITES.items():
        trouble = (choice.randint(1, 9), choice.choice(SURVIVED))
        print(name, trouble)
        write(service, trouble)
    assert service.http.get("/readyz").status_code == 200


@pytest.mark.soak
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("fate", SURVIVED)
@pytest.mark.req("JF-14", "DP-22")
def test_every_statement_of_every_page(service: Service, fate: Fate) -> None:
    for path in pages(service):
        every(
            [(number, fate) for number in range(1, service.asked("GET", path) + 1)],
            partial(look, service, path),
        )


@pytest.mark.soak
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("name", WRITES)
@pytest.mark.req("JF-14", "DP-22")
def test_every_statement_of_a_write_over_http(service: Service, name: str) -> None:
    every([(number, fate) for fate in SURVIVED for number in range(1, 30)], lambda each: WRITES[name](service, each))


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


def commanded(url: str, command: Sequence[str], trouble: Trouble | None) -> tuple[int, str]:
    """How many statements it took, and what it said: what it was asked for, or why not in two lines."""
    with watching(url) as watch, waiting(WAITING if trouble is not None and trouble[1] == "held" else 60.0):
        if trouble is not None:
            watch.expect(trouble, 30.0 if trouble[1] == "held" else LASTS)
        run = CliRunner().invoke(commands, [*command, "--url", url, "--json"], prog_name="holdfast")
        asked = watch.asked
        watch.over()
        assert not any(_is_in_a_transaction(each) for each in watch.connections)
    said = run.stderr.strip()
    if run.exit_code == 1 and said.startswith('{"error"'):
        assert trouble is not None
        assert trouble[1] in CODES, said
        assert json.loads(said)["error"]["code"] == CODES[trouble[1]], said
    else:
        assert run.exit_code == 0, (run.exit_code, run.output, run.exception)
    free(path_of(url))
    return asked, said


def test_some_statements_of_a_command(sqlite_url: str, choice: random.Random) -> None:
    for command in choice.sample(COMMANDS, 4):
        trouble = (choice.randint(1, 20), choice.choice(SURVIVED))
        print(command, trouble)
        commanded(sqlite_url, command, trouble)


@pytest.mark.soak
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_statement_of_a_command(sqlite_url: str, command: Sequence[str]) -> None:
    asked, _ = commanded(sqlite_url, command, None)
    every(
        [(number, fate) for fate in SURVIVED for number in range(1, asked + 1)],
        lambda trouble: commanded(sqlite_url, command, trouble),
    )


# -- the schema ---------------------------------------------------------------------------------------------------


def migrated_through(url: str, trouble: Trouble | None) -> tuple[bool, int]:
    """Whether all is there: else there is nothing of it."""
    fate = None if trouble is None else trouble[1]
    with watching(url) as watch, waiting(WAITING if fate == "held" else 60.0):
        if trouble is not None:
            watch.expect(trouble, 30.0 if fate == "held" else LASTS)
        with closing(open_store(url)) as store:
            error = None
            try:
                store.migrate()
            except StoreUnavailable as refused:
                error = refused
            _explained("migration", fate, error)
            asked = watch.asked
            watch.over()
            assert not any(_is_in_a_transaction(each) for each in watch.connections)
            status = store.schema()
    assert status.current or not status.applied, status
    free(path_of(url))
    return status.current, asked


@pytest.mark.req("DP-20")
def test_some_statements_of_a_migration(tmp_path: Path, choice: random.Random) -> None:
    for n, most in enumerate((12, 500, 500)):
        trouble, url = (choice.randint(1, most), choice.choice(SURVIVED)), f"sqlite:///{tmp_path}/{n}.db"
        print(trouble)
        migrated_through(url, trouble)
        assert migrated_through(url, None)[0]


@pytest.mark.soak
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("fate", SURVIVED)
@pytest.mark.req("DP-20")
def test_every_statement_of_a_migration(tmp_path: Path, fate: Fate) -> None:
    """What fails halfway fails whole, and the next one begins where the first did."""
    _, asked = migrated_through(f"sqlite:///{tmp_path}/whole.db", None)
    whole = shape(tmp_path / "whole.db")
    left: list[Trouble] = [(number, fate) for number in range(1, asked + 1)]
    for n in itertools.count():
        url = f"sqlite:///{tmp_path}/{n}.db"
        while left and not migrated_through(url, left.pop())[0]:
            pass
        assert migrated_through(url, None)[0]
        assert shape(tmp_path / f"{n}.db") == whole
        if not left:
            return


def shape(path: Path) -> list[tuple[object, ...]]:
    with closing(sqlite3.connect(path)) as connection:
        asks = "select type, name, sql from sqlite_master where name <> 'beside' order by 1, 2"
        return connection.execute(asks).fetchall()
