"""Exchanges have their own connections. A pool returns the connection that was idle longest: in a pool shared with
maintenance tasks, each exchange would reach another backend, which has to plan it again.
"""

from __future__ import annotations

import asyncio
from contextlib import closing

import psycopg
import pytest

from holdfast.engine.job import Claim
from holdfast.engine.settlement import Settlement
from holdfast.features.assembly import open_store
from holdfast.stores.flow import Flow, Statement, Steps
from holdfast.stores.requests import ClaimRequest
from tests.support.stores import open_lease, put, spec

LAST_QUERIES = (
    "select pid, query from pg_stat_activity where application_name = 'holdfast' and datname = current_database()"
)


def _slow() -> Steps[None]:
    yield Statement("select pg_sleep(1)")
    return None


@pytest.mark.req("JF-3", "CX-15")
async def test_exchanges_reuse_one_backend(postgres_url: str) -> None:
    with closing(open_store(postgres_url)) as store:
        put(store, *(spec() for _ in range(12)))
        lease = open_lease(store)
        # Enough concurrent calls to open a connection each.
        await asyncio.gather(*(store.arun(Flow(_slow, single=True)) for _ in range(6)))
        claims: list[Claim] = []
        for _ in range(12):
            ended = [Settlement(each.id, each.attempt, "succeeded") for each in claims]
            request = ClaimRequest(lease=lease, queues=("default",), want=1)
            claims = (await store.arun(store.leases.exchange(ended, request))).claims
        with psycopg.connect(postgres_url) as connection:
            rows = connection.execute(LAST_QUERIES).fetchall()
        await store.aclose()
    exchanging = {pid for pid, query in rows if "exchange(" in query}
    others = {pid for pid, query in rows if "pg_sleep" in query}
    assert len(others) > 1, "there were other connections to choose from"
    assert len(exchanging) == 1, rows
