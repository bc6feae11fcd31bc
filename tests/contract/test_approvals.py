"""Approvals: the effect of a decision on its job, single-use tokens, withdrawal, and the inbox in pages."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from holdfast.engine.states import State
from holdfast.features.approvals.model import Approval
from holdfast.features.assembly import Store
from holdfast.stores.requests import Reschedule
from tests.support.direct_sql import ByHand
from tests.support.steps import (
    approval,
    approvals,
    approve,
    asking,
    attend,
    ballot,
    deny,
    keep_token,
    say,
    steps,
    votes,
)
from tests.support.stores import TENANT, forward, history, job, new_id, put_one, state_of, take, types_of

pytestmark = pytest.mark.req("CX-5", "CX-7")


def test_approval_resumes_the_job_with_the_decision(store: Store) -> None:
    now = forward(store)
    pending = asking(store, approvers=("ada", "bob"), quorum=2)
    assert approve(store, pending.id, "bob", comment="fine → 'so'", data={"limit": 7}, how="slack").state == "open"
    assert state_of(store, pending.job_id) is State.WAITING_FOR_APPROVAL
    later = forward(store, 5)
    assert approve(store, pending.id, "ada").state == "approved"
    stored, decided = job(store, pending.job_id), approval(store, pending.id)
    assert (stored.state, stored.due_at, stored.error_code, stored.retries) == (State.QUEUED, None, None, 0)
    assert (decided.state, decided.decided_at) == ("approved", later)
    (step,) = steps(store, pending.job_id)
    assert (step.over, step.ended_at, step.error) == (True, later, None)
    stamps = [at.isoformat(timespec="microseconds").replace("+00:00", "Z") for at in (now, later)]
    vote = {"verdict": "approve", "comment": None, "data": None}
    assert step.value == {
        "content_hash": decided.content_hash,
        "approval_id": pending.id,
        "state": "approved",
        "decided_at": stamps[1],
        "votes": [
            vote | {"person": "bob", "how": "slack", "comment": "fine → 'so'", "data": {"limit": 7}, "at": stamps[0]},
            vote | {"person": "ada", "how": "test", "at": stamps[1]},
        ],
    }
    last = history(store, pending.job_id)[-1]
    assert (last.type, last.actor) == ("approve", "ada")
    assert last.meta == {"approval": "release", "verdict": "approved", "reason": "approved by ada"}
    cast = votes(store, pending.id)
    assert [(vote.person, vote.verdict, vote.how, vote.at) for vote in cast] == [
        ("bob", "approve", "slack", now),
        ("ada", "approve", "test", later),
    ]
    assert take(store, queues=[stored.queue]).attempt == 2


def test_denial_fails_the_job_with_the_reason(store: Store) -> None:
    now = forward(store)
    pending = asking(store)
    assert deny(store, pending.id, "bob", comment="too much").state == "denied"
    stored = job(store, pending.job_id)
    assert (stored.state, stored.finished_at) == (State.FAILED, now)
    assert (stored.error_code, stored.error_message) == ("denied", "denied by bob: too much")
    assert steps(store, pending.job_id)[0].value["state"] == "denied"
    last = history(store, pending.job_id)[-1]
    assert (last.type, last.actor, last.to_state) == ("deny", "bob", State.FAILED)
    assert last.meta == {
        "approval": "release",
        "verdict": "denied",
        "error_code": "denied",
        "error_message": "denied by bob: too much",
    }


def test_denial_resumes_the_job_if_on_deny_is_resume(store: Store) -> None:
    pending = asking(store, on_deny="resume")
    assert deny(store, pending.id, comment="no").state == "denied"
    stored = job(store, pending.job_id)
    assert (stored.state, stored.error_code, stored.finished_at) == (State.QUEUED, None, None)
    last = history(store, pending.job_id)[-1]
    assert (last.type, last.to_state, last.meta["reason"]) == ("deny", State.QUEUED, "denied by bob: no")
    assert steps(store, pending.job_id)[0].value["votes"][0]["comment"] == "no"


def test_one_denial_overrides_earlier_approvals(store: Store) -> None:
    forward(store)
    pending = asking(store, quorum=3)
    approve(store, pending.id, "ada")
    approve(store, pending.id, "eve")
    assert deny(store, pending.id).state == "denied"
    assert [vote.person for vote in votes(store, pending.id)] == ["ada", "eve", "bob"]  # the same time: as cast
    assert state_of(store, pending.job_id) is State.FAILED


# -- tokens (CX-6) -----------------------------------------------------------------------------------------------


@pytest.mark.req("CX-6")
def test_token_works_once_and_only_a_counted_vote_uses_it(store: Store, by_hand: ByHand) -> None:
    now = forward(store)
    pending = asking(store, approvers=("ada", "bob"), quorum=2)
    assert keep_token(store, pending.id, "h1", "ada", 3600.0) is None
    assert keep_token(store, pending.id, "h2") is None
    assert sorted(store.run(store.approvals.token_hashes(pending.id, "default"))) == ["h1", "h2"]
    assert say(store, pending.id, ballot("mallory", token_hash="h2")).reason == "not_an_approver"
    assert say(store, pending.id, ballot("bob", token_hash="h2")).state == "open"
    assert say(store, pending.id, ballot("bob", token_hash="h2")).reason == "token_used"
    answer = say(store, pending.id, ballot(None, token_hash="h1"))
    assert (answer.state, answer.refused) == ("approved", False)
    assert [vote.person for vote in votes(store, pending.id)] == ["bob", "ada"]
    rows = by_hand.execute(
        "select hash, person, issued_by, used_at is not null, expires_at is not null from approval_token order by hash"
    )
    assert [tuple(map(_plain, row)) for row in rows] == [
        ("h1", "ada", "mailer", True, True),
        ("h2", None, "mailer", True, False),
    ]
    assert history(store, pending.job_id)[-1].at == now
    assert not any("h1" in str(event) or "h2" in str(event) for event in history(store, pending.job_id))


def _plain(value: object) -> object:
    return bool(value) if isinstance(value, int) else value


@pytest.mark.req("CX-6")
def test_token_needs_an_open_approval_and_an_approver(store: Store, by_hand: ByHand) -> None:
    pending = asking(store, approvers=("ada",), escalate_after=60.0, escalate_to=("boss",))
    before = by_hand.contents()
    assert keep_token(store, pending.id, "h", "mallory") == "not_an_approver"
    assert keep_token(store, new_id(), "h") == "not_found"
    assert by_hand.contents() == before
    assert keep_token(store, pending.id, "h1", "boss") is None
    approve(store, pending.id)
    assert keep_token(store, pending.id, "h2", "ada") == "already_decided"
    assert store.run(store.approvals.token_hashes(pending.id, "default")) == ["h1"]
    open_to_all = asking(store)
    assert keep_token(store, open_to_all.id, "h3", "anybody") is None


# -- withdrawal ---------------------------------------------------------------------------------------------------


@pytest.mark.req("CX-11")
def test_cancelling_a_job_withdraws_its_approval(store: Store) -> None:
    now = forward(store)
    gone, stays = asking(store), asking(store)
    keep_token(store, gone.id, "h")
    (verdict,) = store.run(store.jobs.operate("cancel", [gone.job_id], "not wanted", "ada", "default"))
    assert (verdict.refused, verdict.state) == (False, State.CANCELLED)
    stored = approval(store, gone.id)
    assert (stored.state, stored.decided_at) == ("withdrawn", now)
    assert [each.id for each in approvals(store)] == [stays.id]
    assert say(store, gone.id, ballot(token_hash="h")).reason == "already_decided"
    assert steps(store, gone.job_id)[0].over is False
    assert types_of(store, gone.job_id)[-1] == "cancel"


@pytest.mark.req("DP-9")
def test_passed_deadline_withdraws_the_approval(store: Store) -> None:
    now = forward(store)
    pending = asking(store, job={"deadline_at": now + timedelta(seconds=60)})
    forward(store, 59)
    assert store.run(store.leases.expire()) == 0
    late = forward(store, 1)
    assert store.run(store.leases.expire()) == 1
    stored = job(store, pending.job_id)
    assert (stored.state, stored.error_code, stored.finished_at) == (State.FAILED, "deadline_passed", late)
    assert (approval(store, pending.id).state, approval(store, pending.id).decided_at) == ("withdrawn", late)
    assert types_of(store, pending.job_id)[-1] == "expire"
    assert approve(store, pending.id).reason == "already_decided"


def test_job_waiting_for_approval_cannot_be_rescheduled(store: Store) -> None:
    pending = asking(store)
    (verdict,) = store.run(store.jobs.reschedule([pending.job_id], Reschedule(), None, "ada", "default"))
    assert (verdict.refused, verdict.reason) == (True, "not_waiting")
    for event_type in ("redrive", "discard"):
        (verdict,) = store.run(store.jobs.operate(event_type, [pending.job_id], "r", "ada", "default"))
        assert verdict.reason == "not_dead"
    assert store.run(store.leases.promote()) == 0
    assert approval(store, pending.id).state == "open"


@pytest.mark.req("CX-15")
def test_job_waits_for_approval_without_a_time_limit(store: Store) -> None:
    forward(store)
    pending = asking(store)
    forward(store, 10 * 365 * 86_400)
    assert store.run(store.leases.recover()).crashed == 0
    assert store.run(store.leases.promote()) + store.run(store.leases.expire()) + attend(store) == 0
    assert state_of(store, pending.job_id) is State.WAITING_FOR_APPROVAL
    assert approve(store, pending.id).state == "approved"


# -- the inbox ----------------------------------------------------------------------------------------------------


@pytest.mark.req("CX-14")
def test_inbox_lists_open_approvals_oldest_first_in_pages(store: Store) -> None:
    pending = [asking(store, name=f"kind {n % 2}") for n in range(7)]
    elsewhere = asking(store, tenant="acme")
    approve(store, pending[2].id)
    deny(store, pending[3].id)
    store.run(store.jobs.operate("cancel", [pending[4].job_id], None, "ada", "default"))
    left = [pending[n].id for n in (0, 1, 5, 6)]

    def listed(**wanted: Any) -> list[str]:
        return [each.id for each in approvals(store, **wanted)]

    assert listed() == left
    assert listed(tenant="*") == [*left, elsewhere.id]
    assert listed(tenant="nobody") == []
    first = listed(limit=3)
    assert (first, listed(limit=3, after=first[-1])) == (left[:3], left[3:])
    assert listed(after=left[-1]) == []
    assert listed(name="kind 1") == [pending[n].id for n in (1, 5)]
    assert listed(job_id=pending[5].job_id) == [pending[5].id]
    assert listed(job_id=new_id()) == []
    assert listed(state="approved") == [pending[2].id]
    assert listed(state="denied", name="kind 1") == [pending[3].id]
    assert listed(state="withdrawn") == [pending[4].id]
    assert listed(state="expired") == []
    assert listed(state=None) == [each.id for each in pending]
    assert listed(state=None, after=pending[3].id, limit=2) == [pending[4].id, pending[5].id]
    assert listed(limit=0) == left[:1]


def test_inbox_of_a_person_lists_what_they_may_decide(store: Store) -> None:
    forward(store)
    anybody = asking(store)
    adas = asking(store, approvers=("ada", "bob"))
    bobs = asking(store, approvers=("bob",), escalate_after=60.0, escalate_to=("ada", "boss"))
    asking(store, approvers=("ada lovelace", "da", '"ada"'))

    def listed(person: str) -> list[Approval]:
        return approvals(store, approver=person)

    assert [each.id for each in listed("ada")] == [anybody.id, adas.id]
    assert [each.id for each in listed("boss")] == [anybody.id]
    forward(store, 60)
    attend(store)
    assert [each.id for each in listed("ada")] == [anybody.id, adas.id, bobs.id]
    assert [each.people for each in listed("boss")] == [(), ("bob", "ada", "boss")]


def test_unknown_approval_is_not_found(store: Store) -> None:
    put_one(store)
    assert store.run(store.approvals.get(new_id(), "default")) is None
    assert store.run(store.approvals.votes(new_id(), "default")) == []
    assert approvals(store) == []


@pytest.mark.req("SC-19")
def test_repeated_decision_is_not_taken_for_an_earlier_one_with_other_values(store: Store) -> None:
    """Its response was lost, and so was the decision. Meanwhile others have decided."""
    if store.embedded:
        pytest.skip("a SQLite file has no responses to lose")
    form = {"type": "object", "properties": {"amount": {"type": "number"}}}
    pending = asking(store, quorum=2, form=form)
    approve(store, pending.id, "ada", data={"amount": 1})
    approve(store, pending.id, "bob", data={"amount": 1.0})

    def repeated(amount: float) -> tuple[bool, str | None]:
        decision = ballot("ada", data={"amount": amount})
        answer = store.run(store.approvals.decide(pending.id, decision, TENANT).again())
        return answer.refused, answer.reason

    assert repeated(1.0) == (False, None)
    assert repeated(2) == (True, "already_decided")
