"""Operations in a transaction of the caller, on every store: row-level security, the oldest server, a file."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import Any

import psycopg
import pytest

from holdfast.engine.settlement import Settlement
from holdfast.engine.states import State
from holdfast.errors import StaleLease
from holdfast.features.assembly import Store
from tests.support.stores import claim, job, open_lease, put_one, spec

pytestmark = pytest.mark.req("HF-3")


def connect(store: Store) -> Any:
    if store.embedded:
        return closing(sqlite3.connect(store.url.removeprefix("sqlite:///")))
    return closing(psycopg.connect(store.url))


@pytest.mark.slow
def test_enqueued_batch_appears_when_the_caller_commits(store: Store) -> None:
    specs = [spec(), spec(key="k"), spec(key="k"), spec(content_key="c", dedupe="skip"), spec(tags=("a",))]
    with connect(store) as connection:
        for end in (connection.rollback, connection.commit):
            answers = store.run_on_connection(connection, store.on_connection.enqueue(specs, "acme"))
            assert [answer.created for answer in answers] == [True, True, False, True, True]
            assert store.run(store.jobs.get(specs[0].id, "acme")) is None
            end()
    result = store.run(store.jobs.counts("acme"))
    assert result[State.QUEUED] == 4
    assert sum(store.run(store.jobs.counts("default")).values()) == 0


def test_settlement_takes_effect_when_the_caller_commits(store: Store) -> None:
    job_id = put_one(store, tenant="acme")
    taken = claim(store, open_lease(store))[0]
    settlement = Settlement(taken.id, taken.attempt, "succeeded", result='{"n":1}')
    with connect(store) as connection:
        for end in (connection.rollback, connection.commit):
            assert store.run_on_connection(connection, store.on_connection.settle(taken.lease, settlement, "*"))
            assert job(store, job_id, tenant="acme").state is State.IN_PROGRESS
            end()
        assert job(store, job_id, tenant="acme").state is State.SUCCEEDED
        assert not store.run_on_connection(connection, store.on_connection.settle(taken.lease, settlement, "*"))
        connection.rollback()


@pytest.mark.req("JF-1", "DP-7")
def test_lease_of_another_tenant_settles_nothing(store: Store) -> None:
    job_id = put_one(store, tenant="acme")
    taken = claim(store, open_lease(store, tenant="acme"), tenant="acme")[0]
    settlement = Settlement(taken.id, taken.attempt, "succeeded")
    with connect(store) as connection:
        with pytest.raises(StaleLease):
            store.run_on_connection(connection, store.on_connection.settle(taken.lease, settlement, "other"))
        connection.commit()
    assert job(store, job_id, tenant="acme").state is State.IN_PROGRESS
