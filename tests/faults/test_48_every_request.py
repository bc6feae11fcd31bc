"""Fault 48: the connection to PostgreSQL is lost at the k-th request, for every k.

Either the request does not reach the server, or its response is lost, or the server does not respond for a while. The
program ends as if nothing had happened, or reports what is unknown. Nothing is lost, and nothing is done partly.

The ordinary run takes random requests (`choice`), the soak takes all of them.
"""

from __future__ import annotations

import itertools
import random
import threading
from collections.abc import Iterator
from contextlib import closing, suppress
from functools import partial
from pathlib import Path

import psycopg
import pytest

from holdfast import App
from holdfast.errors import StoreUnavailable
from holdfast.features.assembly import open_store
from tests.app.notes import prepare_notes
from tests.faults.client_calls import CLIENT_CALLS
from tests.faults.every_point import FORMS, check_maintenance, every, points, threads
from tests.faults.scenarios import WRITES, MaintenanceScenario, Server, WorkerScenario
from tests.migration.catalogue import catalogue
from tests.support.concurrency import together
from tests.support.postgres_databases import Databases, TemplateDatabases
from tests.support.proxy import Cut, Fate, Proxy
from tests.support.waiting import until

pytestmark = pytest.mark.req("CX-15", "DP-7", "DP-8", "SC-11")

FATES: tuple[Fate, ...] = ("request", "answer", "silence")
STAYING = "holdfast-watchdog"


# -- a worker, from its start to its shutdown --------------------------------------------------------------------


@pytest.fixture(scope="module")
def worker(postgres_server: Databases, tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkerScenario]:
    scenario = WorkerScenario(partial(TemplateDatabases, postgres_server), tmp_path_factory.mktemp("worker"))
    yield scenario
    scenario.close()


@pytest.mark.slow
@pytest.mark.parametrize("at_shutdown", [False, True])
def test_worker_survives_some_lost_requests(worker: WorkerScenario, choice: random.Random, at_shutdown: bool) -> None:
    cut = (choice.randint(1, 8 if at_shutdown else 120), choice.choice(FATES[:2]))
    print("cut", cut)
    worker.run(cut, at_shutdown=at_shutdown)


@pytest.mark.soak
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("fate", FATES)
def test_worker_survives_every_lost_request(worker: WorkerScenario, fate: Fate) -> None:
    requests = max(worker.run(None) for _ in range(2))
    every(points(requests, [fate]), worker.run)


@pytest.mark.soak
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("fate", FATES)
@pytest.mark.req("SC-13")
def test_worker_shutdown_survives_every_lost_request(worker: WorkerScenario, fate: Fate) -> None:
    requests = max(worker.run(None, at_shutdown=True) for _ in range(2))
    every(points(requests, [fate]), lambda cut: worker.run(cut, at_shutdown=True))


# -- client calls -------------------------------------------------------------------------------------------------


class Client:
    """Runs client calls on one database, each with its own tenant."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._numbers = itertools.count(1)
        prepare_notes(url)

    def run(self, name: str, form: str, cut: Cut | None) -> int:
        call, tenant = CLIENT_CALLS[name], f"t{next(self._numbers)}"
        before = threads(STAYING)
        with Proxy(self.url) as proxy, closing(App(self.url, tenant=tenant)) as direct:
            if cut is not None:
                proxy.inject(cut, 0.3)
            concurrent = threading.Thread(target=call.concurrent or str, args=(direct,), daemon=True)
            concurrent.start()
            response = call.run(App(proxy.url, tenant=tenant), form)
            assert not (call.reliable and isinstance(response, Exception)), f"needless error: {response!r}"
            concurrent.join(30)
            call.check(direct, response)
            requests = proxy.requests
        until(lambda: not threads(STAYING) - before, "its threads end")
        until(lambda: _connections(self.url) == 0, "its connections are closed")
        return requests


def _connections(url: str) -> int:
    """Count the other connections to the database."""
    with closing(psycopg.connect(url)) as connection:
        query = "select count(*) from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()"
        ((count,),) = connection.execute(query).fetchall()
        return int(count)


@pytest.mark.slow
@FORMS
@pytest.mark.req("DP-5", "HF-3")
def test_client_calls_survive_some_lost_requests(postgres_url: str, choice: random.Random, form: str) -> None:
    client = Client(postgres_url)
    for name in CLIENT_CALLS:
        cut = (choice.randint(1, 6), choice.choice(FATES))
        print(name, cut)
        client.run(name, form, cut)


@pytest.mark.soak
@pytest.mark.timeout(3000)
@FORMS
@pytest.mark.parametrize("name", CLIENT_CALLS)
@pytest.mark.req("DP-5", "HF-3")
def test_client_call_survives_every_lost_request(postgres_url: str, name: str, form: str) -> None:
    client = Client(postgres_url)
    requests = client.run(name, form, None)
    every(points(requests, FATES), lambda cut: client.run(name, form, cut))


# -- maintenance --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def maintenance(postgres_server: Databases) -> Iterator[MaintenanceScenario]:
    scenario = MaintenanceScenario(partial(TemplateDatabases, postgres_server))
    yield scenario
    scenario.close()


@pytest.mark.slow
@pytest.mark.req("DP-16", "HK-5")
def test_maintenance_survives_some_lost_requests(maintenance: MaintenanceScenario, choice: random.Random) -> None:
    check_maintenance(maintenance, lambda _: [(choice.randint(1, 45), choice.choice(FATES)) for _ in range(2)])


@pytest.mark.soak
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("fate", FATES)
@pytest.mark.req("DP-16", "HK-5")
def test_maintenance_survives_every_lost_request(maintenance: MaintenanceScenario, fate: Fate) -> None:
    check_maintenance(maintenance, lambda requests: points(requests, [fate]))


# -- the HTTP server ----------------------------------------------------------------------------------------------


@pytest.fixture
def server(postgres_url: str, folder: Path) -> Iterator[Server]:
    with Proxy(postgres_url) as link:
        server = Server(postgres_url, link, folder)
        try:
            yield server
        finally:
            server.stop()


@pytest.mark.slow
@pytest.mark.req("JF-14", "DP-22")
def test_http_server_survives_some_lost_requests(server: Server, choice: random.Random) -> None:
    for path in choice.sample(server.pages(), 5):
        cut = (choice.randint(1, 4), choice.choice(FATES))
        print(path, cut)
        server.request("GET", path, cut)
    for write in WRITES.values():
        write(server, (choice.randint(1, 4), choice.choice(FATES)))
    assert server.http.get("/readyz").status_code == 200


@pytest.mark.soak
@pytest.mark.timeout(3000)
@pytest.mark.req("JF-14", "DP-22")
def test_every_page_survives_every_lost_request(server: Server) -> None:
    for path in server.pages():
        every(points(server.count_requests("GET", path), FATES[:2]), partial(server.request, "GET", path))


@pytest.mark.soak
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("name", WRITES)
@pytest.mark.req("JF-14", "DP-22")
def test_http_write_survives_every_lost_request(server: Server, name: str) -> None:
    every(points(11, FATES), lambda cut: WRITES[name](server, cut))


# -- migrations ---------------------------------------------------------------------------------------------------


def migrate(url: str, cut: Cut | None) -> tuple[bool, int]:
    """Migrate with a lost request. Returns whether the schema is complete, otherwise it is empty; and the requests."""
    with Proxy(url) as proxy, closing(open_store(proxy.url)) as store:
        if cut is not None:
            proxy.inject(cut, 0.3)
        with suppress(StoreUnavailable):
            store.migrate()
        requests = proxy.requests
    with closing(open_store(url)) as store:
        status = store.schema()
    assert status.current or not status.applied, status
    return status.current, requests


@pytest.mark.req("DP-20")
def test_concurrent_migration_survives_lost_request(empty_postgres_url: str, choice: random.Random) -> None:
    cut = (choice.randint(1, 106), choice.choice(FATES))
    print(cut)
    together(
        lambda: migrate(empty_postgres_url, cut),
        lambda: migrate(empty_postgres_url, None),
    )
    with closing(open_store(empty_postgres_url)) as store:
        assert store.schema().current


@pytest.mark.soak
@pytest.mark.timeout(3000)
@pytest.mark.req("DP-20")
def test_migration_is_atomic_at_every_lost_request(postgres_databases: TemplateDatabases) -> None:
    """A failed migration leaves nothing, and the next one starts from the beginning."""
    with postgres_databases.empty() as url:
        _, requests = migrate(url, None)
        complete = catalogue(url)
    cuts = points(requests, FATES[:2])
    while cuts:
        with postgres_databases.empty() as url:
            while cuts and not migrate(url, cuts.pop())[0]:
                pass
            assert migrate(url, None)[0]
            assert catalogue(url) == complete
