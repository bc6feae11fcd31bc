"""`updated_at` and `last_error_at` of a job, maintained by the database (CX-20)."""

from __future__ import annotations

from datetime import timedelta

import pytest

from holdfast.engine.outcome import Failed
from holdfast.features.assembly import Store
from holdfast.stores.requests import JobFilter
from tests.support.stores import forward, history, job, put_one, tries, work

pytestmark = pytest.mark.req("CX-20")


def test_times_follow_the_ledger(store: Store) -> None:
    job_id = put_one(store, retry=tries(3))
    made = job(store, job_id)
    assert made.updated_at == history(store, job_id)[0].at
    assert made.last_error_at is None
    forward(store, 10)
    (claimed,) = work(store, Failed("busy", "no answer"))
    failed = job(store, job_id)
    (ended,) = (event for event in history(store, job_id) if event.type == "fail")
    assert claimed.id == job_id
    assert failed.last_error_at == ended.at
    assert failed.updated_at == history(store, job_id)[-1].at
    assert ended.at >= made.created_at + timedelta(seconds=10)
    forward(store, 10_000)
    store.run(store.leases.promote())
    work(store)
    done = job(store, job_id)
    assert done.updated_at == done.finished_at == history(store, job_id)[-1].at
    assert done.last_error_at == failed.last_error_at, "a success keeps it"
    (listed,) = store.run(store.jobs.list(JobFilter(tenant=done.tenant)))
    assert (listed.updated_at, listed.last_error_at) == (done.updated_at, done.last_error_at)
