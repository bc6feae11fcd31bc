"""Jobs that name an executor: only workers with that label claim them, on every path of a claim (DP-23)."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.engine.job import Claim
from holdfast.engine.outcome import Failed
from holdfast.errors import HoldfastError, InvalidInput
from holdfast.features.assembly import Store
from holdfast.features.health.model import Health
from holdfast.features.jobs.store import why
from holdfast.features.limits.model import Rule
from holdfast.stores.requests import ClaimRequest, JobFilter
from tests.support.direct_sql import ByHand
from tests.support.features import share
from tests.support.stores import FINAL, forward, job, put, put_one, settle, spec, state_of, tries

pytestmark = pytest.mark.req("DP-23")


def claim_as(store: Store, label: str, want: int = 10, **fields: Any) -> list[Claim]:
    lease = store.run(store.leases.open(f"worker {label}", 30.0, "*", label)).id
    request = ClaimRequest(lease=lease, queues=("default",), want=want, **fields)
    return store.run(store.leases.exchange([], request)).claims


def ids(claims: list[Claim]) -> list[str]:
    return [claimed.id for claimed in claims]


@pytest.mark.every_case
@pytest.mark.parametrize("path", ["plain", "limited", "shared", "behind"])
def test_claim_returns_jobs_for_its_executor_and_for_all(store: Store, path: str) -> None:
    if path == "behind" and store.embedded:
        pytest.skip("SQLite has no claims behind a position")
    first = put_one(store, priority=9)
    gpu = put_one(store, priority=7, executor="gpu-1")
    other = put_one(store, priority=5, executor="gpu-2")
    low, last = put_one(store, executor="gpu-1"), put_one(store)
    if path == "limited":
        store.run(store.limits.set(Rule.of("queue", "default", 100), "ada", "*"))
    if path == "shared":
        share(store, "*")
        put_one(store, tenant="acme", executor="nobody")
    if path == "behind":
        where = job(store, first)
        assert ids(claim_as(store, "worker", after={"default": (where.priority, where.position)})) == [last]
        assert ids(claim_as(store, "worker")) == [first]
        assert ids(claim_as(store, "gpu-1")) == [gpu, low]
    else:
        assert ids(claim_as(store, "worker")) == [first, last]
        assert ids(claim_as(store, "gpu-1", 1)) == [gpu]
        assert ids(claim_as(store, "gpu-1")) == [low]
    assert claim_as(store, "GPU-2") == [], "labels are case-sensitive"
    assert ids(claim_as(store, "gpu-2")) == [other]


def test_executor_is_immutable_and_kept_by_retries_and_redrives(store: Store, by_hand: ByHand) -> None:
    plain = put_one(store, executor="gpu-1", retry=tries(2))
    chained = put_one(store, executor="gpu-1", retry=tries(2), retry_as="new_job")
    for table in ("job", "job_state"):
        assert by_hand.refusal(f"update {table} set executor = 'gpu-2' where id = :id", {"id": plain})
        assert by_hand.refusal(f"update {table} set executor = null where id = :id", {"id": plain})
    for claimed in claim_as(store, "gpu-1"):
        settle(store, claimed, Failed("x", "x"))
    forward(store, 3600)
    store.run(store.leases.promote())
    assert claim_as(store, "worker") == []
    again = claim_as(store, "gpu-1")
    successor = next(each.id for each in again if each.id != plain)
    assert (job(store, successor).retry_of, job(store, successor).executor) == (chained, "gpu-1")
    for claimed in again:
        settle(store, claimed, FINAL)
    assert state_of(store, plain) == "dead_letter"
    store.run(store.jobs.operate("redrive", [plain], None, "ada", "*"))
    changed = store.run(store.dead_letters.redrive_as(successor, spec().id, "{}", None, "ada", "*"))
    assert changed.id is not None
    assert claim_as(store, "worker") == []
    assert {*ids(claim_as(store, "gpu-1"))} == {plain, changed.id}
    listed = JobFilter(tenant="default", executor="gpu-1")
    assert {each.id for each in store.run(store.jobs.list(listed))} == {plain, chained, successor, changed.id}
    ((seen,),) = by_hand.execute("select count(*) from jobs where executor = 'gpu-1'")
    assert seen == 4


def test_invalid_executor_label_is_refused(store: Store) -> None:
    for label in ("", " ", "*", "x" * 101, " gpu"):
        with pytest.raises((InvalidInput, HoldfastError)):
            put(store, spec(executor=label))
    assert store.run(store.jobs.list(JobFilter(tenant="*"))) == []


@pytest.mark.req("HF-2")
def test_why_and_health_report_executors_without_a_worker(store: Store) -> None:
    def reasons_of(job_id: str) -> dict[str, str]:
        return {each.code: each.says for each in store.run(why(store, job_id, "default")).reasons}

    def health(tenant: str = "*") -> Health:
        return store.run(store.health.get(tenant))

    def serve(label: str, kind: str = "mail.send") -> None:
        store.run(store.leases.open("a worker", 3600.0, "*", label, (kind,), ("default",), 4))

    waits = put_one(store, executor="gpu-1")
    later = put_one(store, executor="gpu-9", delay=3600.0)
    assert reasons_of(waits).keys() == {"no_worker"}
    serve("worker")
    assert reasons_of(waits) == {
        "no_worker_for_executor": "it waits for executor gpu-1, and no running worker has that label"
    }
    assert "no_worker_for_executor" in reasons_of(later)
    for tenant, labels in (("*", ("gpu-1",)), ("default", ("gpu-1",)), ("acme", ())):
        assert health(tenant).unserved_executors == labels
    assert [each.code for each in health().reasons if "executor" in each.code] == ["unserved_executors"]
    store.run(store.executors.set("gpu-1", "generator", "ada"))
    assert "generator_only" in reasons_of(waits)
    store.run(store.executors.remove("gpu-1"))
    serve("gpu-1", "other")
    assert reasons_of(waits).keys() == {"no_worker_for_executor"}
    assert health().unserved_executors == ()
    serve("gpu-1")
    assert reasons_of(waits).keys() == {"next"}
