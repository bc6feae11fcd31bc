"""A caller with another worker's job id and its own lease cannot change the job: every write compares both."""

from __future__ import annotations

from contextlib import suppress

import pytest

from holdfast.engine.job import Claim
from holdfast.engine.states import State
from holdfast.errors import Refused, StaleLease
from holdfast.features.assembly import Store
from holdfast.stores.requests import ClaimRequest
from tests.support.concurrency import together
from tests.support.features import register_tenant as register
from tests.support.ledger import most_at_once
from tests.support.stores import claim, enqueue, job, new_id, open_lease, put, put_one, settle, spec, state_of

pytestmark = pytest.mark.req("JF-12", "CX-4")


def held(store: Store, lease: str, *, begin: bool, tenant: str = "*") -> Claim:
    request = ClaimRequest(lease=lease, queues=("default",), want=1, begin=begin, tenant=tenant)
    (result,) = store.run(store.leases.claim(request))
    return result


@pytest.mark.parametrize("begin", [False, True], ids=["leased", "in progress"])
def test_release_under_a_foreign_lease_does_nothing(store: Store, begin: bool) -> None:
    job_id = put_one(store)
    owner, other = open_lease(store, "owner"), open_lease(store, "other")
    held(store, owner, begin=begin)
    before = job(store, job_id)
    assert store.run(store.leases.release(other, [job_id], "*")) == []
    assert job(store, job_id) == before
    assert claim(store, other) == []
    if not begin:
        assert store.run(store.leases.release(owner, [job_id], "*")) == [job_id]
        assert state_of(store, job_id) is State.QUEUED


def test_release_under_a_lease_of_another_tenant_or_unknown(store: Store) -> None:
    job_id = put_one(store, tenant="acme")
    held(store, open_lease(store, tenant="acme"), begin=False, tenant="acme")
    theirs = open_lease(store, tenant="umbrella")
    assert store.run(store.leases.release(theirs, [job_id], "umbrella")) == []
    for lease, tenant in ((theirs, "acme"), (new_id(), "acme"), (new_id(), "*")):
        with pytest.raises(StaleLease):
            store.run(store.leases.release(lease, [job_id], tenant))
    assert state_of(store, job_id) is State.LEASED


# -- caps of a tenant under load ---------------------------------------------------------------------------------------


def test_max_pending_holds_under_load(store: Store) -> None:
    register(store, "acme", max_pending=10)

    def produce() -> int:
        accepted = 0
        for _ in range(6):
            with suppress(Refused):  # the tenant is full
                accepted += enqueue(store, spec(), tenant="acme")[0].created
        return accepted

    assert sum(together(*[produce] * 6)) == 10
    assert store.run(store.jobs.counts("acme")) == {State.QUEUED: 10}


def test_max_running_holds_under_load(store: Store) -> None:
    register(store, "acme", max_running=3)
    put(store, *(spec() for _ in range(24)), tenant="acme")

    def work() -> int:
        lease, done = open_lease(store), 0
        for _ in range(12):
            claims = claim(store, lease, 2)
            running = store.run(store.jobs.counts("acme")).get(State.IN_PROGRESS, 0)
            assert running <= 3
            if claims:
                settle(store, claims)
                done += len(claims)
        return done

    together(*[work] * 5)
    most = most_at_once(store, lambda each: [each.tenant])
    assert 0 < most["acme"] <= 3
