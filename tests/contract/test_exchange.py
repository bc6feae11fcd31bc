"""The exchange of a worker: settle and claim in one transaction; and how its lease reports cancelled jobs."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from holdfast.engine.job import Claim, Exchange, Holding
from holdfast.engine.settlement import Settlement, decide
from holdfast.engine.states import State
from holdfast.errors import StaleLease
from holdfast.features.assembly import Store, open_store
from holdfast.stores.flow import Flow
from holdfast.stores.postgres.store import run_on
from holdfast.stores.requests import ClaimRequest
from tests.support.direct_sql import open_by_hand
from tests.support.stores import BROKEN, DONE, claim, new_id, open_lease, put, put_one, spec

pytestmark = pytest.mark.req("SC-4", "DP-7", "CX-15")


def exchange(
    store: Store,
    lease: str,
    *ended: Settlement,
    want: int = 10,
    queues: tuple[str, ...] = ("default",),
    after: Mapping[str, tuple[int, int]] | None = None,
) -> Exchange:
    request = ClaimRequest(lease=lease, queues=queues, want=want, after=after or {})
    return store.run(store.leases.exchange(ended, request))


def done(job: Claim) -> Settlement:
    return decide(job, DONE, 0.0)


def states(store: Store, *ids: str) -> list[State]:
    result = [store.run(store.jobs.get(job_id, "default")) for job_id in ids]
    return [job.state for job in result if job is not None]


def test_exchange_settles_and_claims(store: Store) -> None:
    ids = put(store, *(spec() for _ in range(5)))
    lease = open_lease(store)
    first = exchange(store, lease, want=2)
    assert [job.id for job in first.claims] == ids[:2]
    second = exchange(store, lease, done(first.claims[0]), decide(first.claims[1], BROKEN, 0.0), want=2)
    assert ([job.id for job in second.claims], second.stale, second.live) == (ids[2:4], [], True)
    assert states(store, *ids) == [
        *(State.SUCCEEDED, State.RETRY_WAITING),
        *(State.IN_PROGRESS, State.IN_PROGRESS, State.QUEUED),
    ]


def test_exchange_may_settle_or_claim_nothing(store: Store) -> None:
    ids = put(store, spec(), spec())
    lease = open_lease(store)
    (job,) = exchange(store, lease, want=1).claims
    assert exchange(store, lease, done(job), want=0).claims == []
    assert exchange(store, lease, want=0) == Exchange([], [], True, 0)
    assert states(store, *ids) == [State.SUCCEEDED, State.QUEUED]


def test_stale_settlements_are_returned_and_the_rest_applied(store: Store) -> None:
    ids = put(store, *(spec() for _ in range(3)))
    lease = open_lease(store)
    first, second = exchange(store, lease, want=2).claims
    store.run(store.jobs.operate("cancel", [first.id], None, "ada", "default"))
    answer = exchange(store, lease, done(first), done(second), Settlement(new_id(), 1, "succeeded"))
    assert len(answer.stale) == 2
    assert first.id in answer.stale
    assert [job.id for job in answer.claims] == ids[2:]
    assert states(store, *ids[:2]) == [State.CANCELLED, State.SUCCEEDED]


def test_exchange_under_a_lapsed_lease_settles_but_does_not_claim(store: Store) -> None:
    ids = put(store, spec(), spec())
    lease = open_lease(store, ttl=30)
    (job,) = exchange(store, lease, want=1).claims
    store.run(store.clock.set(timedelta(seconds=60), None))
    answer = exchange(store, lease, done(job))
    assert (answer.claims, answer.stale, answer.live) == ([], [], False)
    assert states(store, *ids) == [State.SUCCEEDED, State.QUEUED]
    assert store.run(store.leases.renew(lease, 30, "*"))
    assert [job.id for job in exchange(store, lease).claims] == ids[1:]


def test_exchange_under_an_ended_lease_does_nothing(store: Store) -> None:
    put_one(store)
    other = put_one(store)
    lease = open_lease(store)
    (job,) = exchange(store, lease, want=1).claims
    store.run(store.leases.end(lease, "closed", "*"))
    store.run(store.leases.recover())
    answer = exchange(store, lease, done(job))
    assert (answer.claims, answer.stale, answer.live) == ([], [job.id], False)
    assert states(store, other) == [State.QUEUED]


def test_exchange_under_an_unknown_lease_is_refused(store: Store) -> None:
    job_id = put_one(store)
    with pytest.raises(StaleLease):
        exchange(store, new_id(), Settlement(job_id, 1, "succeeded"))
    assert states(store, job_id) == [State.QUEUED]


@pytest.mark.req("SC-2")
def test_exchange_claims_in_queue_order(store: Store) -> None:
    low, high = put(store, spec(priority=0), spec(priority=5))
    mail = put_one(store, queue="mail")
    lease = open_lease(store)
    taken = exchange(store, lease, queues=("mail", "default"))
    assert [job.id for job in taken.claims] == [mail, high, low]
    assert [(job.priority, job.position > 0) for job in taken.claims] == [(0, True), (5, True), (0, True)]


def test_exchange_after_a_position_claims_later_jobs(owned_postgres_url: str) -> None:
    """Later jobs of that priority, then all lower ones; earlier jobs are left for a claim from the head."""
    with closing(open_store(owned_postgres_url)) as store:
        before = put_one(store, priority=5)
        first, second, third = put(store, spec(priority=3), spec(priority=3), spec(priority=3))
        lower = put_one(store, priority=-2)
        lease = open_lease(store)
        (taken,) = (job for job in exchange(store, lease, want=2).claims if job.id == first)
        retried = put_one(store, priority=9)
        position = {"default": (taken.priority, taken.position)}
        assert [job.id for job in exchange(store, lease, after=position).claims] == [second, third, lower]
        assert [job.id for job in exchange(store, lease).claims] == [retried]
        assert states(store, before) == [State.IN_PROGRESS]


@pytest.mark.req("CX-11")
def test_cancellation_is_counted_on_the_lease(store: Store) -> None:
    put(store, spec(), spec())
    waiting = put_one(store, queue="elsewhere")
    lease, other = open_lease(store), open_lease(store)
    first, second = claim(store, lease, 2)
    assert store.run(store.leases.cancellations(lease, "*")) == 0
    assert sorted(store.run(store.leases.holdings(lease, "*")), key=lambda held: held.id) == sorted(
        [Holding(first.id, 1, True), Holding(second.id, 1, True)], key=lambda held: held.id
    )
    store.run(store.jobs.operate("cancel", [first.id, waiting], None, "ada", "default"))
    assert store.run(store.leases.cancellations(lease, "*")) == 1
    assert store.run(store.leases.cancellations(other, "*")) == 0
    assert store.run(store.leases.holdings(lease, "*")) == [Holding(second.id, 1, True)]
    assert store.run(store.leases.cancellations(new_id(), "*")) is None


def test_holdings_show_which_jobs_have_started(store: Store) -> None:
    job_id = put_one(store)
    lease = open_lease(store)
    claim(store, lease, begin=False)
    assert store.run(store.leases.holdings(lease, "*")) == [Holding(job_id, 0, False)]


def test_idle_polling_writes_nothing(store: Store) -> None:
    """An idle worker must not write to the disk or wake other workers."""
    lease = open_lease(store)
    request = ClaimRequest(lease=lease, queues=("default",), want=10)
    for flow in (
        store.leases.exchange([], request),
        store.leases.promote(),
        store.leases.expire(),
        store.leases.recover(),
    ):
        assert not wrote(store, flow)


def wrote(store: Store, flow: Flow[Any]) -> bool:
    if store.embedded:
        with closing(open_by_hand(store.url)) as by_hand:
            before = by_hand.execute("PRAGMA data_version")
            store.run(flow)
            return by_hand.execute("PRAGMA data_version") != before
    with psycopg.connect(store.url) as connection:  # which starts a transaction
        run_on(connection, flow)
        row = connection.execute("select pg_current_xact_id_if_assigned()").fetchone()
        return row is not None and row[0] is not None
