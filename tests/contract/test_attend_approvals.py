"""Due approvals: reminders, escalation and expiry, by the policy of each approval."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from holdfast.engine.states import State
from holdfast.features.assembly import Store
from tests.support.direct_sql import ByHand, PostgresByHand
from tests.support.steps import approval, approve, asking, attend, steps
from tests.support.stores import claim, forward, history, job, open_lease, state_of, types_of

pytestmark = pytest.mark.req("CX-7")


def notices_of(store: Store, job_id: str) -> list[tuple[str, int]]:
    """The notices about the approval of this job, oldest first: event and number."""
    queue = job(store, job_id).queue
    notices = claim(store, open_lease(store), 50, queues=[queue], kinds=("tell",))
    return [(each["what"], each["number"]) for each in (job(store, n.id).payload["notice"] for n in notices)]


def test_approval_without_times_is_never_due(store: Store) -> None:
    forward(store)
    pending = asking(store)
    forward(store, 1e9)
    assert attend(store) == 0
    assert approval(store, pending.id).state == "open"


@pytest.mark.parametrize(
    ("options", "state", "event_type", "approval_state"),
    [
        ({}, State.FAILED, "expire", "expired"),
        ({"on_deny": "resume"}, State.QUEUED, "expire", "expired"),
        ({"on_expire": "approve"}, State.QUEUED, "approve", "approved"),
        ({"on_expire": "remind"}, State.WAITING_FOR_APPROVAL, "ask", "open"),
    ],
)
def test_approval_expires_by_its_policy(
    store: Store, options: dict[str, Any], state: State, event_type: str, approval_state: str
) -> None:
    forward(store)
    pending = asking(store, expires_in=60.0, notify="tell", quorum=2, **options)
    approve(store, pending.id, "ada")  # one of two
    forward(store, 59.999999)
    assert attend(store) == 0
    now = forward(store, 0.000001)
    assert attend(store) == 1
    assert attend(store) == 0
    stored, decided = job(store, pending.job_id), approval(store, pending.id)
    assert (stored.state, types_of(store, pending.job_id)[-1], decided.state) == (state, event_type, approval_state)
    if approval_state == "open":
        assert (decided.reminders, decided.expires_at) == (1, now + timedelta(seconds=60))
        assert notices_of(store, pending.job_id) == [("asked", 0), ("reminder", 1)]
        assert approve(store, pending.id, "bob").state == "approved"
        return
    last = history(store, pending.job_id)[-1]
    assert (last.actor, last.at, decided.decided_at) == ("maintenance", now, now)
    assert (last.meta["verdict"], last.meta["approval"]) == (approval_state, "release")
    (step,) = steps(store, pending.job_id)
    assert (step.over, step.value["state"], len(step.value["votes"])) == (True, approval_state, 1)
    if state is State.FAILED:
        assert (stored.error_code, stored.error_message) == ("approval_expired", "no decision in time")
    else:
        assert last.meta["reason"] == "no decision in time"


def test_reminders_repeat(store: Store) -> None:
    forward(store)
    pending = asking(store, remind_every=60.0, notify="tell")
    for number in (1, 2):
        now = forward(store, 61)
        assert attend(store) == 1
        assert attend(store) == 0
        stored = approval(store, pending.id)
        assert (stored.reminders, stored.remind_at, stored.state) == (number, now + timedelta(seconds=60), "open")
    assert notices_of(store, pending.job_id) == [("asked", 0), ("reminder", 1), ("reminder", 2)]
    assert state_of(store, pending.job_id) is State.WAITING_FOR_APPROVAL


def test_approval_is_escalated_once(store: Store) -> None:
    forward(store)
    pending = asking(store, approvers=("ada",), escalate_after=60.0, escalate_to=("boss",), notify="tell")
    assert approve(store, pending.id, "boss").reason == "not_an_approver"
    now = forward(store, 60)
    assert attend(store) == 1
    forward(store, 3600)
    assert attend(store) == 0
    stored = approval(store, pending.id)
    assert (stored.escalated_at, stored.escalate_at, stored.people) == (now, None, ("ada", "boss"))
    assert notices_of(store, pending.job_id) == [("asked", 0), ("escalated", 0)]
    assert approve(store, pending.id, "boss").state == "approved"


def test_one_pass_handles_everything_that_is_due(store: Store) -> None:
    """One pass escalates and reminds; expiry comes last."""
    forward(store)
    later: dict[str, Any] = {"remind_every": 30.0, "escalate_after": 60.0, "escalate_to": ("boss",), "notify": "tell"}
    both, over = asking(store, **later), asking(store, expires_in=45.0, **later)
    forward(store, 60)
    assert attend(store) == 2
    stored = approval(store, both.id)
    assert (stored.escalated_at is not None, stored.reminders, stored.state) == (True, 1, "open")
    assert notices_of(store, both.job_id) == [("asked", 0), ("escalated", 0), ("reminder", 1)]
    assert approval(store, over.id).state == "expired"
    assert notices_of(store, over.job_id) == [("asked", 0), ("escalated", 0)]


def test_no_notice_without_a_notify_kind(store: Store) -> None:
    forward(store)
    pending = asking(store, remind_every=60.0)
    forward(store, 60)
    attend(store)
    assert approval(store, pending.id).reminders == 1
    assert notices_of(store, pending.job_id) == []


def test_attend_handles_the_most_overdue_first_up_to_its_limit(store: Store) -> None:
    forward(store)
    pending = [asking(store, expires_in=span) for span in (30.0, 10.0, 20.0, 99.0)]
    forward(store, 60)
    assert [attend(store, 2), attend(store, 2), attend(store, 2)] == [2, 1, 0]
    assert [approval(store, each.id).state for each in pending] == ["expired", "expired", "expired", "open"]


@pytest.mark.req("JF-1")
def test_attend_of_one_tenant_skips_the_others(store: Store) -> None:
    forward(store)
    mine, theirs = asking(store, tenant="acme", expires_in=10.0), asking(store, tenant="umbrella", expires_in=10.0)
    forward(store, 60)
    assert attend(store, tenant="acme") == 1
    assert (approval(store, mine.id).state, approval(store, theirs.id).state) == ("expired", "open")
    assert attend(store) == 1


@pytest.mark.req("DP-9")
def test_deadline_and_expiry_at_the_same_time_end_a_job_once(store: Store) -> None:
    now = forward(store)
    due = {"deadline_at": now + timedelta(seconds=60)}
    one, two = asking(store, expires_in=60.0, job=due), asking(store, expires_in=60.0, job=due)
    forward(store, 60)
    assert attend(store, 1) == 1
    assert store.run(store.leases.expire()) == 1
    assert attend(store) == 0
    ends = {(job(store, each.job_id).error_code, approval(store, each.id).state) for each in (one, two)}
    assert ends == {("approval_expired", "expired"), ("deadline_passed", "withdrawn")}


@pytest.mark.req("SC-19")
def test_attend_skips_locked_jobs(store: Store, by_hand: ByHand) -> None:
    """PostgreSQL only: SQLite has one writer at a time."""
    if not isinstance(by_hand, PostgresByHand):
        pytest.skip("one writer at a time")
    forward(store)
    locked, free = asking(store, expires_in=10.0), asking(store, expires_in=10.0)
    forward(store, 60)
    by_hand.begin()
    by_hand.execute("select from job_state where id = :id for update", {"id": locked.job_id})
    assert attend(store) == 1
    assert (approval(store, locked.id).state, approval(store, free.id).state) == ("open", "expired")
    by_hand.rollback()
    assert attend(store) == 1
