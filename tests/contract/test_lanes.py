"""Turns go over connections of their own. A pool hands out whichever has rested longest: among the connections of the
duties a turn would come to another backend each time, which plans it from the beginning."""

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

ASKED_LAST = (
    "select pid, query from pg_stat_activity where application_name = 'holdfast' and datname = current_database()"
)


def _long() -> Steps[None]:
    yield Statement("select pg_sleep(1)")
    return None


@pytest.mark.req("JF-3", "CX-15")
async def test_a_turn_comes_to_a_backend_that_knows_it(postgres_url: str) -> None:
    with closing(open_store(postgres_url)) as store:
        put(store, *(spec() for _ in range(12)))
        lease = open_lease(store)
        # As many at once as open a connection each.
        await asyncio.gather(*(store.arun(Flow(_long, single=True)) for _ in range(6)))
        claims: list[Claim] = []
        for _ in range(12):
            ended = [Settlement(each.id, each.attempt, "succeeded") for each in claims]
            request = ClaimRequest(lease=lease, queues=("default",), want=1)
            claims = (await store.arun(store.leases.exchange(ended, request))).claims
        with psycopg.connect(postgres_url) as connection:
            asked = connection.execute(ASKED_LAST).fetchall()
        await store.aclose()
    turning = {pid for pid, query in asked if "exchange(" in query}
    others = {pid for pid, query in asked if "pg_sleep" in query}
    assert len(others) > 1, "there were others to choose from"
    assert len(turning) == 1, asked
