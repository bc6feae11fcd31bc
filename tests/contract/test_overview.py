"""Counts, health and the attempts of a job."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.engine.outcome import Failed, Paused
from holdfast.engine.states import State
from holdfast.engine.steps import Pause
from holdfast.features.approvals.model import ApprovalFilter, Ballot, Question
from holdfast.features.assembly import Store
from holdfast.features.health.model import Health, Thresholds
from holdfast.stores.requests import JobFilter
from tests.support.direct_sql import ByHand
from tests.support.features import share
from tests.support.job_states import bring
from tests.support.stores import (
    BROKEN,
    FINAL,
    LATER,
    claim,
    forward,
    new_id,
    open_lease,
    put,
    put_one,
    settle,
    spec,
    take,
    work,
)


def health(store: Store, tenant: str = "default", **when: Any) -> Health:
    return store.run(store.health.get(tenant, Thresholds(**when)))


@pytest.mark.req("DP-19", "DP-1")
def test_counts_by_state(store: Store, by_hand: ByHand) -> None:
    assert store.run(store.jobs.counts("default")) == {}
    for state in State:
        bring(store, by_hand, state)
    bring(store, by_hand, State.QUEUED)
    expected = dict.fromkeys(State, 1) | {State.QUEUED: 2}
    assert store.run(store.jobs.counts("default")) == expected
    assert store.run(store.jobs.counts("*")) == expected
    assert store.run(store.jobs.counts("acme")) == {}


@pytest.mark.req("DP-19")
def test_empty_store_is_healthy(store: Store) -> None:
    assert health(store) == Health(0, 0, 0, 0, None, 0, (), "ok")


@pytest.mark.req("DP-19")
def test_health_counts_jobs_and_leases(store: Store) -> None:
    forward(store)
    put(store, *(spec(f"kind-{n % 2}") for n in range(7)), spec(delay=10), spec("late", delay=20))
    work(store, FINAL)
    work(store, LATER)
    lease = open_lease(store)
    claim(store, lease)
    claim(store, lease, begin=False)
    forward(store, 5)
    result = health(store)
    assert (result.backlog, result.scheduled, result.in_progress, result.dead_letter_open) == (3, 3, 2, 1)
    assert (result.oldest_queued_age_s, result.waiting_kinds) == (5.0, ("kind-0", "kind-1"))
    assert result.lease_active == 3
    assert (result.verdict, [each.code for each in result.reasons]) == ("warn", ["dead_letters"])


@pytest.mark.req("DP-19")
def test_queue_age_counts_from_when_a_job_may_start(store: Store) -> None:
    """Time before a job may start does not count: neither a delay nor a snooze."""
    forward(store)
    put_one(store, delay=1000)
    forward(store, 1000)
    store.run(store.leases.promote())
    assert health(store).oldest_queued_age_s == 0.0
    work(store, LATER)
    forward(store, 1_000_000)
    store.run(store.leases.promote())
    forward(store, 5)
    assert health(store).oldest_queued_age_s == 5.0


@pytest.mark.req("DP-19")
def test_health_reports_jobs_without_a_worker(store: Store) -> None:
    forward(store)
    put_one(store)
    assert health(store).verdict == "warn"
    assert "no worker is running" in health(store).reasons[0].says
    lease = open_lease(store, ttl=10_000)
    assert health(store).verdict == "ok"
    forward(store, 400)
    assert "has waited 400 s" in health(store).reasons[0].says
    assert health(store).verdict == "warn"
    assert health(store, oldest_warn=500.0).verdict == "ok"
    assert health(store, oldest_critical=399.0).verdict == "critical"
    store.run(store.leases.end(lease, "closed", "*"))
    assert [(each.code, each.level) for each in health(store).reasons] == [("no_worker", "critical")]


@pytest.mark.req("DP-19")
def test_health_counts_live_leases_only(store: Store) -> None:
    forward(store)
    open_lease(store, ttl=10)
    ended = open_lease(store, ttl=1000)
    open_lease(store, ttl=1000)
    store.run(store.leases.end(ended, "closed", "*"))
    assert health(store).lease_active == 2
    forward(store, 10)
    assert health(store).lease_active == 1


@pytest.mark.req("DP-19", "JF-1")
def test_worker_for_every_tenant_counts_for_each_tenant(store: Store) -> None:
    for tenant in ("acme", "umbrella"):
        put_one(store, tenant=tenant)
    open_lease(store, tenant="*")
    open_lease(store, tenant="acme")
    assert (health(store, "acme").lease_active, health(store, "acme").backlog) == (2, 1)
    assert (health(store, "umbrella").lease_active, health(store, "umbrella").verdict) == (1, "ok")
    assert (health(store, "*").lease_active, health(store, "*").backlog) == (2, 2)


def asks(store: Store, *, tenant: str = "default", **options: Any) -> str:
    """A job that waits for approval; returns the approval's id."""
    approval_id = new_id()
    put_one(store, tenant=tenant)
    approval = Question(**({"summary": "May it?"} | options)).to_json(approval_id, "may", None)
    settle(
        store,
        take(store, tenant=tenant),
        Paused(Pause(1, "may", "approval", approval=approval).to_json(), []),
        tenant=tenant,
    )
    return approval_id


@pytest.mark.req("DP-19", "CX-5")
def test_health_counts_open_approvals(store: Store) -> None:
    forward(store)
    first, theirs = asks(store), asks(store, tenant="acme")
    forward(store, 40)
    asks(store)
    forward(store, 2)
    assert (health(store).approvals_open, health(store).oldest_approval_age_s) == (2, 42.0)
    assert (health(store, "acme").approvals_open, health(store, "*").approvals_open) == (1, 3)
    assert health(store).verdict == "ok"
    store.run(store.approvals.decide(first, Ballot("deny", "ada", "tests"), "default"))
    assert (health(store).approvals_open, health(store).oldest_approval_age_s) == (1, 2.0)
    store.run(store.approvals.decide(theirs, Ballot("deny", "ada", "tests"), "acme"))
    assert (health(store, "acme").approvals_open, health(store, "acme").oldest_approval_age_s) == (0, None)


@pytest.mark.req("CX-5", "CX-7")
def test_approval_counts_its_votes(store: Store) -> None:
    approval_id = asks(store, quorum=3)

    def result() -> list[tuple[int, int]]:
        read = [
            store.run(store.approvals.get(approval_id, "default")),
            *store.run(store.approvals.list(ApprovalFilter(tenant="*"))),
        ]
        return [(approval.approvals, approval.missing) for approval in read if approval is not None]

    assert result() == [(0, 3)] * 2
    for person in ("ada", "bob"):
        store.run(store.approvals.decide(approval_id, Ballot("approve", person, "tests"), "default"))
    assert result() == [(2, 1)] * 2
    store.run(store.approvals.decide(approval_id, Ballot("deny", "eve", "tests"), "default"))
    assert result() == [(2, 0)]


@pytest.mark.req("CX-14", "HF-6")
def test_notes_of_a_page_of_jobs(store: Store) -> None:
    share(store)  # the order of the queue, without fair shares between tenants
    queued = put_one(store)
    store.run(store.jobs.operate("cancel", [queued], "not now", "ada", "default"))
    put_one(store, tenant="acme")
    sleeps = put_one(store, priority=1)
    settle(store, take(store), Paused(Pause(1, "nap", "sleep", delay=60.0).to_json(), []))
    assert store.run(store.jobs.notes(JobFilter(tenant="default"))) == {
        queued: {"reason": "not now"},
        sleeps: {"sleeps": "nap"},
    }
    assert store.run(store.jobs.notes(JobFilter(tenant="*", state=State.RETRY_WAITING))) == {sleeps: {"sleeps": "nap"}}
    assert store.run(store.jobs.notes(JobFilter(tenant="default", before=sleeps, limit=1))) == {
        queued: {"reason": "not now"}
    }
    assert store.run(store.jobs.notes(JobFilter(tenant="acme"))) == {}


@pytest.mark.req("SC-5", "DP-22", "SC-4")
def test_attempts_are_read_from_the_ledger(store: Store) -> None:
    first = forward(store)
    job_id = put_one(store)
    settle(store, take(store), Failed("smtp_down", "no answer", traceback="Traceback: here"))
    second = forward(store, 10)
    store.run(store.leases.promote())
    claimed = take(store)
    third = forward(store, 5)
    settle(store, claimed, LATER)
    attempts = store.run(store.jobs.attempts(job_id, "default"))
    assert [(each.attempt, each.outcome) for each in attempts] == [(1, "failed"), (2, "suspended")]
    assert (attempts[0].started_at, attempts[0].ended_at) == (first, first)
    assert (attempts[1].started_at, attempts[1].ended_at) == (second, third)
    assert (attempts[0].error_code, attempts[0].error_message) == ("smtp_down", "no answer")
    assert (attempts[0].traceback, attempts[1].error_code) == ("Traceback: here", None)
    assert {each.worker for each in attempts} == {"worker-1"}


@pytest.mark.req("SC-5")
def test_every_end_of_an_attempt_has_its_outcome(store: Store) -> None:
    forward(store)
    ends = {"succeeded": None, "failed": BROKEN, "suspended": LATER, "cancelled": None, "crashed": None}
    result = {}
    for outcome, how in ends.items():
        job_id = put_one(store)
        claimed = take(store)
        if outcome == "cancelled":
            store.run(store.jobs.operate("cancel", [job_id], None, "ada", "default"))
        elif outcome == "crashed":
            forward(store, 60)
            store.run(store.leases.recover())
        elif how is None:
            settle(store, claimed)
        else:
            settle(store, claimed, how)
        (attempt,) = store.run(store.jobs.attempts(job_id, "default"))
        result[outcome] = attempt.outcome
    assert result == {outcome: outcome for outcome in ends}


@pytest.mark.req("SC-5")
def test_released_claim_is_no_attempt(store: Store) -> None:
    job_id = put_one(store)
    lease = open_lease(store)
    claim(store, lease, begin=False)
    store.run(store.leases.release(lease, [job_id], "*"))
    assert store.run(store.jobs.attempts(job_id, "default")) == []
