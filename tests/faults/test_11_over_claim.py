"""Fault 11, and JF-3: whatever the query plan and however many workers claim at once, no claim exceeds its limit, no
job is claimed twice, and no claim waits for another.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, closing
from urllib.parse import urlsplit

import psycopg
import pytest
from psycopg import sql

from holdfast.features.assembly import Store, open_store
from holdfast.features.postgres import PostgresStore
from holdfast.stores.requests import ClaimRequest
from tests.faults.checker import check
from tests.support.stores import claim, open_lease, put, settle, spec
from tests.support.transactions import Transaction

pytestmark = pytest.mark.req("DP-7", "JF-3")

# Planner settings that forbid good plans, for every session of the database.
SETTINGS: dict[str, dict[str, str]] = {
    "nested loops only": {"enable_hashjoin": "off", "enable_mergejoin": "off", "enable_material": "off"},
    "no index": {"enable_indexscan": "off", "enable_indexonlyscan": "off", "enable_bitmapscan": "off"},
    "no loops": {"enable_nestloop": "off", "enable_memoize": "off"},
    "reads are dear": {"random_page_cost": "100000", "cpu_index_tuple_cost": "1000"},
    "generic plans": {"plan_cache_mode": "force_generic_plan"},
    "parallel": {"parallel_setup_cost": "0", "parallel_tuple_cost": "0", "min_parallel_table_scan_size": "0"},
}

# Statistics of the table: (rows, pages).
STATISTICS = {"one row": (1, 1), "a billion rows": (1e9, 100_000_000), "nothing known": (-1, 0)}


@pytest.fixture
def store(postgres_url: str) -> Iterator[Store]:
    with closing(open_store(postgres_url)) as opened:
        yield opened


@pytest.mark.parametrize("settings", SETTINGS)
def test_claim_never_exceeds_its_limit(store: Store, settings: str) -> None:
    for statistics in STATISTICS:
        put(store, *(spec() for _ in range(60)))
        claim_within_limits(store, settings, statistics)


def claim_within_limits(store: Store, settings: str, statistics: str) -> None:
    name = sql.Identifier(urlsplit(store.url).path.lstrip("/"))
    rows, pages = STATISTICS[statistics]
    with psycopg.connect(store.url, autocommit=True) as admin:
        for setting, value in SETTINGS[settings].items():
            admin.execute(sql.SQL("alter database {} set {} = {}").format(name, sql.Identifier(setting), value))
        admin.execute("set allow_system_table_mods = on")
        admin.execute(
            "update pg_class set reltuples = %s, relpages = %s where oid = 'holdfast.job_state'::regclass",
            (rows, pages),
        )
    taken: list[str] = []
    with closing(open_store(store.url)) as fresh:  # new sessions have these settings
        lease = open_lease(fresh)
        for want in (1, 2, 1, 7, 20):
            claims = claim(fresh, lease, want)
            assert len(claims) == want
            taken += [each.id for each in claims]
    assert len(set(taken)) == 31


# -- JF-3: a hundred workers -----------------------------------------------------------------------------------

CLAIMERS = 100
EACH = 5


class Claimer:
    """A worker with its own connection that claims jobs as soon as all claimers are ready."""

    def __init__(self, url: str, barrier: threading.Barrier) -> None:
        self._store = PostgresStore(url, pool_size=1)
        self._lease = open_lease(self._store, f"claimer {id(self)}", ttl=3600)
        self._barrier = barrier
        self.taken: list[str] = []
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        self._barrier.wait(60)
        while batch := claim(self._store, self._lease, EACH):
            assert len(batch) <= EACH
            self.taken += [each.id for each in batch]
            assert settle(self._store, batch) == []

    def close(self) -> None:
        self._store.close()


@pytest.mark.slow
def test_hundred_workers_claim_each_job_once(store: Store) -> None:
    ids = put(store, *(spec() for _ in range(2_000)))
    barrier = threading.Barrier(CLAIMERS)
    with ExitStack() as stack:
        claimers = [stack.enter_context(closing(Claimer(store.url, barrier))) for _ in range(CLAIMERS)]
        for claimer in claimers:
            claimer.thread.join(60)
            assert not claimer.thread.is_alive()
    taken = Counter(job for claimer in claimers for job in claimer.taken)
    assert taken.keys() == set(ids)
    assert set(taken.values()) == {1}
    check(store.url, ids)


def test_claims_do_not_wait_for_open_claim(store: Store) -> None:
    """One claim has not committed; other claims take later jobs, and none of its jobs."""
    ids = put(store, *(spec() for _ in range(200)))
    slow = Transaction(store)
    lease = slow.run(store.leases.open("slow", 1000, "*")).id
    request = ClaimRequest(lease=lease, queues=("default",), want=50)
    held = {each.id for each in slow.run(store.leases.claim(request))}
    assert len(held) == 50
    others: list[str] = []
    with psycopg.connect(store.url, autocommit=True) as impatient:
        impatient.execute("set lock_timeout = '100ms'")  # a wait for a lock raises an error
        for _ in range(15):
            mine = impatient.execute("select lease from holdfast.open_lease('quick', for_tenant => '*')").fetchone()
            assert mine is not None
            rows = impatient.execute(
                "select id::text from holdfast.claim_many(%s, array['default'], 10, for_tenant => '*')", mine
            ).fetchall()
            others += [row[0] for row in rows]
    assert len(others) == len(set(others)) == 150
    assert not held & set(others)
    slow.end("rollback")
    again = {each.id for each in claim(store, open_lease(store), 1000)}
    assert again == held == set(ids) - set(others)
