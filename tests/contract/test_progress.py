"""Checkpoints and artifacts: saved under the fence and kept across crashes; artifacts are never changed."""

from __future__ import annotations

import dataclasses

import pytest

from holdfast.engine.job import Claim, Liveness
from holdfast.engine.states import State
from holdfast.engine.steps import RESERVED
from holdfast.errors import Conflict, StaleLease
from holdfast.features.assembly import Store
from tests.support.direct_sql import ByHand
from tests.support.stores import (
    BROKEN,
    claim,
    forward,
    job,
    new_id,
    open_lease,
    put_one,
    settle,
    state_of,
    take,
    types_of,
)


def save(store: Store, held: Claim, value: str, name: str = "progress") -> bool:
    return store.run(store.steps.save_checkpoint(held.id, held.lease, held.attempt, name, value, "*"))


def add(store: Store, held: Claim, name: str, ref: str = "file:x") -> bool:
    return store.run(store.steps.add_artifact(held.id, held.lease, held.attempt, name, ref, "*"))


def saved(store: Store, job_id: str) -> dict[str, object]:
    return store.run(store.jobs.checkpoints(job_id, "default"))


@pytest.mark.req("CX-8")
def test_checkpoint_is_stored_by_name_and_overwritten(store: Store) -> None:
    job_id = put_one(store)
    held = take(store)
    assert saved(store, job_id) == {}
    assert save(store, held, '{"page":1}')
    assert save(store, held, '{"page":2}')
    assert save(store, held, "[1]", name="other")
    assert saved(store, job_id) == {"progress": {"page": 2}, "other": [1]}


@pytest.mark.req("CX-8", "CX-4")
def test_checkpoints_do_not_touch_the_state_row_or_the_ledger(store: Store, by_hand: ByHand) -> None:
    job_id = put_one(store)
    held = take(store)
    tables = ("job", "job_state", "event", "lease")
    before = {table: by_hand.contents()[table] for table in tables}
    hidden = _row_version(by_hand, job_id)
    save(store, held, "1")
    add(store, held, "log")
    assert {table: by_hand.contents()[table] for table in tables} == before
    assert _row_version(by_hand, job_id) == hidden
    assert types_of(store, job_id) == ["enqueue", "take"]


def _row_version(by_hand: ByHand, job_id: str) -> object:
    """PostgreSQL creates a new version of a rewritten row, even with the same values."""
    if by_hand.name == "sqlite":
        return None
    return by_hand.execute("select xmin, ctid from job_state where id = :id", {"id": job_id})


@pytest.mark.req("CX-8", "CX-15")
def test_next_attempt_reads_the_last_checkpoint(store: Store) -> None:
    forward(store)
    job_id = put_one(store)
    held = take(store)
    save(store, held, '{"page":7}')
    forward(store, 60)
    store.run(store.leases.recover())
    store.run(store.leases.promote())
    again = take(store)
    assert (again.id, again.attempt) == (job_id, 2)
    assert saved(store, job_id) == {"progress": {"page": 7}}
    assert save(store, again, '{"page":8}')
    assert not save(store, held, '{"page":0}')
    assert saved(store, job_id) == {"progress": {"page": 8}}


@pytest.mark.req("CX-8", "DP-7")
def test_checkpoint_requires_lease_attempt_and_a_running_job(store: Store) -> None:
    job_id = put_one(store)
    held = take(store)
    assert not save(store, dataclasses.replace(held, attempt=2), "1")
    assert not save(store, dataclasses.replace(held, lease=open_lease(store)), "1")
    assert not save(store, dataclasses.replace(held, id=new_id()), "1")
    with pytest.raises(StaleLease):
        save(store, dataclasses.replace(held, lease=new_id()), "1")
    settle(store, held)
    assert not save(store, held, "1")
    assert saved(store, job_id) == {}


@pytest.mark.req("CX-8")
def test_leased_job_cannot_save_a_checkpoint(store: Store) -> None:
    put_one(store)
    (held,) = claim(store, open_lease(store), begin=False)
    assert not save(store, held, "1")


@pytest.mark.req("SC-5")
def test_artifacts_belong_to_their_attempt(store: Store) -> None:
    now = forward(store)
    job_id = put_one(store)
    first = take(store)
    assert add(store, first, "report.csv", "file:///r.csv")
    settle(store, first, BROKEN)
    forward(store, 60)
    store.run(store.leases.promote())
    second = take(store)
    assert add(store, second, "report.csv", "file:///r2.csv")
    result = store.run(store.jobs.artifacts(job_id, "default"))
    assert [(each.attempt, each.name, each.ref) for each in result] == [
        (1, "report.csv", "file:///r.csv"),
        (2, "report.csv", "file:///r2.csv"),
    ]
    assert (result[0].at, result[0].meta) == (now, {})


@pytest.mark.req("SC-5")
def test_artifact_can_be_added_after_the_end(store: Store) -> None:
    job_id = put_one(store)
    held = take(store)
    settle(store, held)
    assert state_of(store, job_id) == State.SUCCEEDED
    assert add(store, held, "late.log")
    assert len(store.run(store.jobs.artifacts(job_id, "default"))) == 1


@pytest.mark.req("SC-5", "DP-7")
def test_artifact_requires_lease_and_attempt(store: Store) -> None:
    job_id = put_one(store)
    held = take(store)
    assert not add(store, dataclasses.replace(held, attempt=2), "a")
    assert not add(store, dataclasses.replace(held, lease=open_lease(store)), "a")
    with pytest.raises(StaleLease):
        add(store, dataclasses.replace(held, lease=new_id()), "a")
    store.run(store.jobs.operate("cancel", [job_id], None, "ada", "default"))
    assert not add(store, held, "after a cancel")
    assert store.run(store.jobs.artifacts(job_id, "default")) == []


@pytest.mark.req("SC-5")
def test_artifact_is_added_once(store: Store) -> None:
    job_id = put_one(store)
    held = take(store)
    assert add(store, held, "log", "file:one")
    with pytest.raises(Conflict) as caught:
        add(store, held, "log", "file:two")
    assert caught.value.code == "already_exists"
    assert [each.ref for each in store.run(store.jobs.artifacts(job_id, "default"))] == ["file:one"]


@pytest.mark.req("CX-8", "JF-1")
def test_lease_of_another_tenant_saves_nothing(store: Store) -> None:
    job_id = put_one(store, tenant="acme")
    held = take(store, tenant="acme")
    for tenant in ("umbrella", "*"):
        with pytest.raises(StaleLease):
            store.run(store.steps.save_checkpoint(job_id, held.lease, 1, "p", "1", tenant))
        with pytest.raises(StaleLease):
            store.run(store.steps.add_artifact(job_id, held.lease, 1, "a", "file:a", tenant))
    assert job(store, job_id).state == State.IN_PROGRESS
    assert store.run(store.jobs.checkpoints(job_id, "acme")) == {}


@pytest.mark.req("DP-12")
def test_renewals_and_progress_reports_are_counted(store: Store) -> None:
    """They write no events: the lease and the report count them and store the time of the last one."""
    job_id = put_one(store)
    assert (seen := trace(store, job_id)).worker is None
    assert (seen.renewals, seen.reports) == (None, 0)
    held = take(store)
    before = len(store.run(store.jobs.history(job_id, "default")))
    for n in range(3):
        forward(store, 1)
        assert save(store, held, f'{{"fraction":0.{n}}}', name=RESERVED)
    forward(store, 1)
    assert store.run(store.leases.renew(held.lease, 30.0, "*"))
    assert store.run(store.leases.renew(held.lease, 30.0, "*"))
    seen = trace(store, job_id)
    assert (seen.attempt, seen.renewals, seen.reports) == (1, 2, 3)
    assert seen.reported_at is not None
    assert seen.renewed_at is not None
    assert seen.reported_at < seen.renewed_at
    assert len(store.run(store.jobs.history(job_id, "default"))) == before

    # The counts stay after the attempt; the next attempt starts at zero, and a refused report leaves nothing.
    settle(store, held, BROKEN)
    assert not save(store, held, "1", name=RESERVED)
    assert (trace(store, job_id).renewals, trace(store, job_id).reports) == (2, 3)
    forward(store, 90_000)
    store.run(store.leases.promote())
    second = take(store)
    assert (trace(store, job_id).attempt, trace(store, job_id).reports) == (2, 0)
    assert save(store, second, "1", name=RESERVED)
    assert trace(store, job_id).reports == 1
    assert store.run(store.jobs.liveness(job_id, "acme")) is None
    assert store.run(store.jobs.liveness(new_id(), "*")) is None


def trace(store: Store, job_id: str) -> Liveness:
    result = store.run(store.jobs.liveness(job_id, "default"))
    assert result is not None
    return result
