"""Fault 48: the connection to PostgreSQL is lost at the k-th request, for every k there is.

Either the server never heard of the request, or its answer is lost, or nobody is answered for a while. Whoever runs
through it ends as if nothing had been, or says what is not known; nothing is lost, and nothing is done halfway.

The ordinary run takes some at random (`choice`), the soak takes every one.
"""

from __future__ import annotations

import itertools
import random
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from functools import partial
from pathlib import Path

import psycopg
import pytest

from holdfast import App
from holdfast.errors import StoreUnavailable
from holdfast.features.assembly import open_store
from tests.app.notes import prepare_notes
from tests.faults.chores import Household
from tests.faults.errands import ERRANDS
from tests.faults.serving import WRITES, Service, pages
from tests.faults.workplace import Cut, OverAProxy, Workplace
from tests.migration.catalogue import catalogue
from tests.support.concurrency import together
from tests.support.postgres_databases import Databases, TemplateDatabases
from tests.support.proxy import Fate, Proxy
from tests.support.waiting import until

pytestmark = pytest.mark.req("CX-15", "DP-7", "DP-8", "SC-11")

FATES: tuple[Fate, ...] = ("request", "answer", "silence")


def every(cuts: Sequence[Cut], run: Callable[[Cut], object]) -> None:
    """All of them, also behind one that fails: those that fail together have one reason."""
    failed = []
    for cut in cuts:
        try:
            run(cut)
        except AssertionError as error:
            failed.append(f"--- {cut[1]} {cut[0]}: {error}")
    assert not failed, f"{len(failed)} of {len(cuts)}\n" + "\n".join(failed)


# -- a worker, from its start to its leaving ---------------------------------------------------------------------


@pytest.fixture(scope="module")
def workplace(postgres_server: Databases, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workplace]:
    made = Workplace(partial(TemplateDatabases, postgres_server), tmp_path_factory.mktemp("workplace"))
    yield made
    made.close()


@pytest.mark.slow
@pytest.mark.parametrize("leaving", [False, True])
def test_some_requests_of_a_worker(workplace: Workplace, choice: random.Random, leaving: bool) -> None:
    cut = (choice.randint(1, 8 if leaving else 120), choice.choice(FATES[:2]))
    print("cut", cut)
    workplace.through(cut, leaving=leaving)


@pytest.mark.soak
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("fate", FATES)
def test_every_request_of_a_worker(workplace: Workplace, fate: Fate) -> None:
    asked = max(workplace.through(None) for _ in range(2))
    every([(number, fate) for number in range(1, asked + 1)], workplace.through)


@pytest.mark.soak
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("fate", FATES)
@pytest.mark.req("SC-13")
def test_every_request_of_a_worker_that_leaves(workplace: Workplace, fate: Fate) -> None:
    asked = max(workplace.through(None, leaving=True) for _ in range(2))
    every([(number, fate) for number in range(1, asked + 1)], lambda cut: workplace.through(cut, leaving=True))


# -- whoever asks for something -----------------------------------------------------------------------------------


class Shop:
    """One database, and a tenant for each errand that is run."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._numbers = itertools.count(1)
        prepare_notes(url)

    def through(self, name: str, colour: str, cut: Cut | None) -> int:
        errand, tenant = ERRANDS[name], f"t{next(self._numbers)}"
        threads = _threads()
        with Proxy(self.url) as proxy, closing(App(self.url, tenant=tenant)) as outside:
            if cut is not None:
                proxy.cut_nth(*cut, 0.3)
            beside = threading.Thread(target=errand.beside or str, args=(outside,), daemon=True)
            beside.start()
            told = errand.tell(App(proxy.url, tenant=tenant), colour)
            assert not (errand.sure and isinstance(told, Exception)), f"it could have known: {told!r}"
            beside.join(30)
            errand.true(outside, told)
            asked = proxy.asked
        until(lambda: not _threads() - threads, "its threads end")
        until(lambda: _connections(self.url) == 0, "its connections are closed")
        return asked


def _threads() -> set[threading.Thread]:
    """But for those that stay for a while in case they are needed again."""
    return {each for each in threading.enumerate() if each.name != "holdfast-watchdog"}


def _connections(url: str) -> int:
    """How many there are, beside the one that asks."""
    with closing(psycopg.connect(url)) as connection:
        asks = "select count(*) from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()"
        (found,) = connection.execute(asks).fetchall()
        return int(found[0])


COLOURS = pytest.mark.parametrize("colour", ["sync", "async"])


@pytest.mark.slow
@COLOURS
@pytest.mark.req("DP-5", "HF-3")
def test_some_requests_of_each_errand(postgres_url: str, choice: random.Random, colour: str) -> None:
    shop = Shop(postgres_url)
    for name in ERRANDS:
        cut = (choice.randint(1, 6), choice.choice(FATES))
        print(name, cut)
        shop.through(name, colour, cut)


@pytest.mark.soak
@pytest.mark.timeout(3000)
@COLOURS
@pytest.mark.parametrize("name", ERRANDS)
@pytest.mark.req("DP-5", "HF-3")
def test_every_request_of_an_errand(postgres_url: str, name: str, colour: str) -> None:
    shop = Shop(postgres_url)
    asked = shop.through(name, colour, None)
    cuts = [(number, fate) for fate in FATES for number in range(1, asked + 1)]
    every(cuts, lambda cut: shop.through(name, colour, cut))


# -- what is done on the side -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def household(postgres_server: Databases) -> Iterator[Household]:
    made = Household(partial(TemplateDatabases, postgres_server))
    yield made
    made.close()


@pytest.mark.slow
@pytest.mark.req("DP-16", "HK-5")
def test_some_requests_of_the_duties(household: Household, choice: random.Random) -> None:
    _, ends = household.through(None)
    for _ in range(2):
        cut = (choice.randint(1, 45), choice.choice(FATES))
        print("cut", cut)
        assert household.through(cut)[1] == ends


@pytest.mark.soak
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("fate", FATES)
@pytest.mark.req("DP-16", "HK-5")
def test_every_request_of_the_duties(household: Household, fate: Fate) -> None:
    asked, ends = household.through(None)

    def through(cut: Cut) -> None:
        found = household.through(cut)[1]
        assert found == ends, (found - ends, ends - found)

    every([(number, fate) for number in range(1, asked + 1)], through)


# -- the service --------------------------------------------------------------------------------------------------


@pytest.fixture
def service(postgres_url: str, folder: Path) -> Iterator[Service]:
    with OverAProxy(postgres_url) as line:
        service = Service(postgres_url, line, folder)
        try:
            yield service
        finally:
            service.stop()


@pytest.mark.slow
@pytest.mark.req("JF-14", "DP-22")
def test_some_requests_of_the_service(service: Service, choice: random.Random) -> None:
    for path in choice.sample(pages(service), 5):
        cut = (choice.randint(1, 4), choice.choice(FATES))
        print(path, cut)
        service.ask("GET", path, cut)
    for write in WRITES.values():
        write(service, (choice.randint(1, 4), choice.choice(FATES)))
    assert service.http.get("/readyz").status_code == 200


@pytest.mark.soak
@pytest.mark.timeout(3000)
@pytest.mark.req("JF-14", "DP-22")
def test_every_request_of_every_page(service: Service) -> None:
    for path in pages(service):
        cuts = [(number, fate) for fate in FATES[:2] for number in range(1, service.asked("GET", path) + 1)]
        every(cuts, partial(service.ask, "GET", path))


@pytest.mark.soak
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("name", WRITES)
@pytest.mark.req("JF-14", "DP-22")
def test_every_request_of_a_write_over_http(service: Service, name: str) -> None:
    every([(number, fate) for fate in FATES for number in range(1, 12)], lambda cut: WRITES[name](service, cut))


# -- the schema ---------------------------------------------------------------------------------------------------


def migrated_through(url: str, cut: Cut | None) -> tuple[bool, int]:
    """Whether all is there: else there is nothing of it."""
    with Proxy(url) as proxy, closing(open_store(proxy.url)) as store:
        if cut is not None:
            proxy.cut_nth(*cut, 0.3)
        with suppress(StoreUnavailable):
            store.migrate()
        asked = proxy.asked
    with closing(open_store(url)) as store:
        status = store.schema()
    assert status.current or not status.applied, status
    return status.current, asked


@pytest.mark.req("DP-20")
def test_some_requests_of_a_migration(empty_postgres_url: str, choice: random.Random) -> None:
    """The others that migrate at the same moment do not mind."""
    cut = (choice.randint(1, 106), choice.choice(FATES))
    print(cut)
    together(
        lambda: migrated_through(empty_postgres_url, cut),
        lambda: migrated_through(empty_postgres_url, None),
    )
    with closing(open_store(empty_postgres_url)) as store:
        assert store.schema().current


@pytest.mark.soak
@pytest.mark.timeout(3000)
@pytest.mark.req("DP-20")
def test_every_request_of_a_migration(postgres_databases: TemplateDatabases) -> None:
    """What is lost halfway is lost whole, and the next one begins where the first did."""
    with postgres_databases.empty() as url:
        _, asked = migrated_through(url, None)
        whole = catalogue(url)
    left = [(number, fate) for fate in FATES[:2] for number in range(1, asked + 1)]
    while left:
        with postgres_databases.empty() as url:
            while left and not migrated_through(url, left.pop())[0]:
                pass
            assert migrated_through(url, None)[0]
            assert catalogue(url) == whole
