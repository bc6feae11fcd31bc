"""Approvals: what a decision does to its job, tokens that work once, withdrawn questions, the inbox in pages."""

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
from tests.support.stores import forward, history, job, new_id, put_one, state_of, take, types_of

pytestmark = pytest.mark.req("CX-5", "CX-7")


def test_approved_the_job_goes_on_with_the_decision_in_its_hands(store: Store) -> None:
    now = forward(store)
    asked = asking(store, approvers=("ada", "bob"), quorum=2)
    assert approve(store, asked.id, "bob", comment="fine → 'so'", data={"limit": 7}, how="slack").state == "open"
    assert state_of(store, asked.job_id) is State.WAITING_FOR_APPROVAL
    later = forward(store, 5)
    assert approve(store, asked.id, "ada").state == "approved"
    found, decided = job(store, asked.job_id), approval(store, asked.id)
    assert (found.state, found.due_at, found.error_code, found.retries) == (State.QUEUED, None, None, 0)
    assert (decided.state, decided.decided_at) == ("approved", later)
    (step,) = steps(store, asked.job_id)
    assert (step.over, step.ended_at, step.error) == (True, later, None)
    stamps = [at.isoformat(timespec="microseconds").replace("+00:00", "Z") for at in (now, later)]
    word = {"verdict": "approve", "comment": None, "data": None}
    assert step.value == {
        "approval_id": asked.id,
        "state": "approved",
        "decided_at": stamps[1],
        "votes": [
            word | {"person": "bob", "how": "slack", "comment": "fine → 'so'", "data": {"limit": 7}, "at": stamps[0]},
            word | {"person": "ada", "how": "test", "at": stamps[1]},
        ],
    }
    last = history(store, asked.job_id)[-1]
    assert (last.type, last.actor) == ("approve", "ada")
    assert last.meta == {"approval": "release", "verdict": "approved", "reason": "approved by ada"}
    said = votes(store, asked.id)
    assert [(vote.person, vote.verdict, vote.how, vote.at) for vote in said] == [
        ("bob", "approve", "slack", now),
        ("ada", "approve", "test", later),
    ]
    assert take(store, queues=[found.queue]).attempt == 2


def test_denied_the_job_has_failed_with_the_reason(store: Store) -> None:
    now = forward(store)
    asked = asking(store)
    assert deny(store, asked.id, "bob", comment="too much").state == "denied"
    found = job(store, asked.job_id)
    assert (found.state, found.finished_at) == (State.FAILED, now)
    assert (found.error_code, found.error_message) == ("denied", "denied by bob: too much")
    assert steps(store, asked.job_id)[0].value["state"] == "denied"
    last = history(store, asked.job_id)[-1]
    assert (last.type, last.actor, last.to_state) == ("deny", "bob", State.FAILED)
    assert last.meta == {
        "approval": "release",
        "verdict": "denied",
        "error_code": "denied",
        "error_message": "denied by bob: too much",
    }


def test_where_the_handler_deals_with_a_no_it_goes_on(store: Store) -> None:
    asked = asking(store, on_deny="resume")
    assert deny(store, asked.id, comment="no").state == "denied"
    found = job(store, asked.job_id)
    assert (found.state, found.error_code, found.finished_at) == (State.QUEUED, None, None)
    last = history(store, asked.job_id)[-1]
    assert (last.type, last.to_state, last.meta["reason"]) == ("deny", State.QUEUED, "denied by bob: no")
    assert steps(store, asked.job_id)[0].value["votes"][0]["comment"] == "no"


def test_a_no_after_some_have_agreed(store: Store) -> None:
    forward(store)
    asked = asking(store, quorum=3)
    approve(store, asked.id, "ada")
    approve(store, asked.id, "eve")
    assert deny(store, asked.id).state == "denied"
    assert [vote.person for vote in votes(store, asked.id)] == ["ada", "bob", "eve"]  # at the same moment, by name
    assert state_of(store, asked.job_id) is State.FAILED


# -- tokens (CX-6) -----------------------------------------------------------------------------------------------


@pytest.mark.req("CX-6")
def test_a_token_works_once_and_is_used_up_by_a_word_that_counts(store: Store, by_hand: ByHand) -> None:
    now = forward(store)
    asked = asking(store, approvers=("ada", "bob"), quorum=2)
    assert keep_token(store, asked.id, "h1", "ada", 3600.0) is None
    assert keep_token(store, asked.id, "h2") is None
    assert sorted(store.run(store.approvals.token_hashes(asked.id, "default"))) == ["h1", "h2"]
    assert say(store, asked.id, ballot("mallory", token_hash="h2")).reason == "not_an_approver"
    assert say(store, asked.id, ballot("bob", token_hash="h2")).state == "open"
    assert say(store, asked.id, ballot("bob", token_hash="h2")).reason == "token_used"
    answer = say(store, asked.id, ballot(None, token_hash="h1"))
    assert (answer.state, answer.refused) == ("approved", False)
    assert [vote.person for vote in votes(store, asked.id)] == ["ada", "bob"]
    rows = by_hand.execute(
        "select hash, person, issued_by, used_at is not null, expires_at is not null from approval_token order by hash"
    )
    assert [tuple(map(_plain, row)) for row in rows] == [
        ("h1", "ada", "mailer", True, True),
        ("h2", None, "mailer", True, False),
    ]
    assert history(store, asked.job_id)[-1].at == now
    assert not any("h1" in str(event) or "h2" in str(event) for event in history(store, asked.job_id))


def _plain(value: object) -> object:
    return bool(value) if isinstance(value, int) else value


@pytest.mark.req("CX-6")
def test_a_token_is_issued_for_an_open_approval_and_somebody_who_may_use_it(store: Store, by_hand: ByHand) -> None:
    asked = asking(store, approvers=("ada",), escalate_after=60.0, escalate_to=("boss",))
    before = by_hand.contents()
    assert keep_token(store, asked.id, "h", "mallory") == "not_an_approver"
    assert keep_token(store, new_id(), "h") == "not_found"
    assert by_hand.contents() == before
    assert keep_token(store, asked.id, "h1", "boss") is None
    approve(store, asked.id)
    assert keep_token(store, asked.id, "h2", "ada") == "already_decided"
    assert store.run(store.approvals.token_hashes(asked.id, "default")) == ["h1"]
    open_to_all = asking(store)
    assert keep_token(store, open_to_all.id, "h3", "anybody") is None


# -- taken back ---------------------------------------------------------------------------------------------------


@pytest.mark.req("CX-11")
def test_a_job_that_is_cancelled_takes_its_question_back(store: Store) -> None:
    now = forward(store)
    gone, stays = asking(store), asking(store)
    keep_token(store, gone.id, "h")
    (verdict,) = store.run(store.jobs.operate("cancel", [gone.job_id], "not wanted", "ada", "default"))
    assert (verdict.refused, verdict.state) == (False, State.CANCELLED)
    found = approval(store, gone.id)
    assert (found.state, found.decided_at) == ("withdrawn", now)
    assert [each.id for each in approvals(store)] == [stays.id]
    assert say(store, gone.id, ballot(token_hash="h")).reason == "already_decided"
    assert steps(store, gone.job_id)[0].over is False
    assert types_of(store, gone.job_id)[-1] == "cancel"


@pytest.mark.req("DP-9")
def test_a_job_past_its_deadline_takes_its_question_back(store: Store) -> None:
    now = forward(store)
    asked = asking(store, job={"deadline_at": now + timedelta(seconds=60)})
    forward(store, 59)
    assert store.run(store.leases.expire()) == 0
    late = forward(store, 1)
    assert store.run(store.leases.expire()) == 1
    found = job(store, asked.job_id)
    assert (found.state, found.error_code, found.finished_at) == (State.FAILED, "deadline_passed", late)
    assert (approval(store, asked.id).state, approval(store, asked.id).decided_at) == ("withdrawn", late)
    assert types_of(store, asked.job_id)[-1] == "expire"
    assert approve(store, asked.id).reason == "already_decided"


def test_a_job_that_waits_for_people_has_no_other_time(store: Store) -> None:
    asked = asking(store)
    (verdict,) = store.run(store.jobs.reschedule([asked.job_id], Reschedule(), None, "ada", "default"))
    assert (verdict.refused, verdict.reason) == (True, "not_waiting")
    for event_type in ("redrive", "discard"):
        (verdict,) = store.run(store.jobs.operate(event_type, [asked.job_id], "r", "ada", "default"))
        assert verdict.reason == "not_dead"
    assert store.run(store.leases.promote()) == 0
    assert approval(store, asked.id).state == "open"


@pytest.mark.req("CX-15")
def test_it_waits_however_long_whatever_becomes_of_the_worker(store: Store) -> None:
    forward(store)
    asked = asking(store)
    forward(store, 10 * 365 * 86_400)
    assert store.run(store.leases.reap()).crashed == 0
    assert store.run(store.leases.promote()) + store.run(store.leases.expire()) + attend(store) == 0
    assert state_of(store, asked.job_id) is State.WAITING_FOR_APPROVAL
    assert approve(store, asked.id).state == "approved"


# -- the inbox ----------------------------------------------------------------------------------------------------


@pytest.mark.req("CX-14")
def test_the_inbox_has_what_is_open_the_oldest_first_in_pages(store: Store) -> None:
    asked = [asking(store, name=f"kind {n % 2}") for n in range(7)]
    elsewhere = asking(store, tenant="acme")
    approve(store, asked[2].id)
    deny(store, asked[3].id)
    store.run(store.jobs.operate("cancel", [asked[4].job_id], None, "ada", "default"))
    left = [asked[n].id for n in (0, 1, 5, 6)]

    def listed(**wanted: Any) -> list[str]:
        return [each.id for each in approvals(store, **wanted)]

    assert listed() == left
    assert listed(tenant="*") == [*left, elsewhere.id]
    assert listed(tenant="nobody") == []
    first = listed(limit=3)
    assert (first, listed(limit=3, after=first[-1])) == (left[:3], left[3:])
    assert listed(after=left[-1]) == []
    assert listed(name="kind 1") == [asked[n].id for n in (1, 5)]
    assert listed(job_id=asked[5].job_id) == [asked[5].id]
    assert listed(job_id=new_id()) == []
    assert listed(state="approved") == [asked[2].id]
    assert listed(state="denied", name="kind 1") == [asked[3].id]
    assert listed(state="withdrawn") == [asked[4].id]
    assert listed(state="expired") == []
    assert listed(state=None) == [each.id for each in asked]
    assert listed(state=None, after=asked[3].id, limit=2) == [asked[4].id, asked[5].id]
    assert listed(limit=0) == left[:1]


def test_the_inbox_of_a_person_has_what_they_may_decide(store: Store) -> None:
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


def test_a_approval_that_never_was(store: Store) -> None:
    put_one(store)
    assert store.run(store.approvals.get(new_id(), "default")) is None
    assert store.run(store.approvals.votes(new_id(), "default")) == []
    assert approvals(store) == []
