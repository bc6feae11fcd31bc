"""`why`: every reason that holds for a job's state, and what would change it (HF-2)."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

import pytest

from holdfast.engine.outcome import Cancelled, Crashed, Failed, Paused, Snoozed
from holdfast.engine.states import State
from holdfast.errors import NotFound
from holdfast.features.agents.model import MAX_AHEAD, Definition
from holdfast.features.assembly import Store
from holdfast.features.jobs.model import Why
from holdfast.features.jobs.store import story, view, why
from holdfast.features.jobs.why import REASONS
from holdfast.features.jobs.why_reasons import Reason
from holdfast.stores.requests import Reschedule
from tests.support.direct_sql import ByHand, unguarded
from tests.support.steps import asking, ballot
from tests.support.stores import (
    BROKEN,
    FINAL,
    claim,
    forward,
    open_lease,
    put,
    put_one,
    settle,
    spec,
    take,
    tries,
    work,
)

pytestmark = pytest.mark.req("HF-2")


def why_of(store: Store, job_id: str, tenant: str = "default") -> Why:
    """`why` of a job; the page of the job, which reads everything at once, must give the same reasons."""
    result = store.run(why(store, job_id, tenant))
    seen = store.run(view(store, job_id, tenant, 5))
    assert seen is not None
    assert seen.story == store.run(story(store, job_id, tenant))
    expected = [] if result.job.state is State.SUCCEEDED else result.reasons
    assert [each.code for each in seen.reasons] == [each.code for each in expected]
    return result


def codes(store: Store, job_id: str, tenant: str = "default") -> list[str]:
    return [reason.code for reason in why_of(store, job_id, tenant).reasons]


def only(store: Store, job_id: str, code: str) -> Reason:
    """The only reason, apart from the missing worker."""
    result = why_of(store, job_id).reasons
    assert [reason.code for reason in result] in ([code], [code, "no_worker"]), result
    return result[0]


def reason(store: Store, job_id: str, code: str, tenant: str = "default") -> Reason:
    (result,) = [each for each in why_of(store, job_id, tenant).reasons if each.code == code]
    return result


def serve(store: Store, *, tenant: str = "*", label: str = "worker", **serves: Any) -> str:
    facts: dict[str, Any] = {"kinds": ("mail.send",), "queues": ("default",), "slots": 4} | serves
    return store.run(store.leases.open(f"worker of {tenant}", 3600, tenant, label, **facts)).id


def test_reasons_of_finished_jobs(store: Store) -> None:
    done = put_one(store)
    work(store)
    assert "in attempt 1 by worker-1" in only(store, done, "succeeded").says

    dead = put_one(store, retry=tries(2))
    work(store, BROKEN)
    forward(store, 600)
    store.run(store.leases.promote())
    work(store, BROKEN)
    cause = only(store, dead, "dead_letter")
    assert "all of its 2 attempts failed; the last time broken: it broke" in cause.says
    assert f"redrive {dead}" in (cause.change or "")
    store.run(store.jobs.operate("redrive", [dead], None, "ada", "default"))
    for _ in range(2):
        forward(store, 600)
        store.run(store.leases.promote())
        work(store, BROKEN)
    assert re.search(
        "all of its 2 attempts since it was redriven at [^;]* UTC failed;", only(store, dead, "dead_letter").says
    )
    snoozed = put_one(store, retry=tries(2))
    for outcome in (Snoozed(0.0), BROKEN, BROKEN):
        work(store, outcome)
        forward(store, 600)
        store.run(store.leases.promote())
    assert "2 of its 3 attempts failed, and no more may" in only(store, snoozed, "dead_letter").says
    final = put_one(store)
    work(store, FINAL)
    assert "an error that is not retried" in only(store, final, "dead_letter").says
    poison = put_one(store, retry=tries(3, crashes=0))
    work(store, Crashed("process_died", "gone"))
    assert "was lost 1 times, and 0 are allowed" in only(store, poison, "dead_letter").says

    cancelled, own = put_one(store), put_one(store)
    store.run(store.jobs.operate("cancel", [cancelled], "not wanted", "ada", "default"))
    assert "by ada" in only(store, cancelled, "cancelled").says
    assert only(store, cancelled, "cancelled").says.endswith("not wanted")
    work(store, Cancelled("enough"))
    assert "by its own handler" in only(store, own, "cancelled").says
    store.run(store.jobs.operate("discard", [final], "no use", "bob", "default"))
    assert "discarded by bob" in only(store, final, "discarded").says

    late = put_one(store, deadline_at=store.run(store.clock.now()) + timedelta(seconds=5))
    forward(store, 10)
    assert "deadline_over" in codes(store, late)
    store.run(store.leases.expire())
    assert "deadline" in only(store, late, "deadline_passed").says

    old = put_one(store, retry_as="new_job")
    settle(store, take(store), BROKEN)
    (_, new) = store.run(store.jobs.chain(old, "default"))
    cause = only(store, old, "retried_as_new_job")
    assert f"retried as job {new.id}, which is queued" in cause.says
    assert cause.change is not None
    assert f"holdfast why {new.id}" in cause.change
    with pytest.raises(NotFound):
        why_of(store, old, "acme")


def test_job_that_its_worker_handed_back_was_not_put_off_by_its_handler(store: Store) -> None:
    for reason_given, says in (
        ("never_begun", "its worker handed it back before it began"),
        ("worker_stopped", "its worker stopped and handed it back"),
        ("the bank is closed", "its handler put it off (the bank is closed)"),
    ):
        job_id = put_one(store)
        work(store, Snoozed(60.0, reason_given))
        assert only(store, job_id, "snoozed").says.startswith(f"{says}, until ")


def test_suggested_worker_would_take_the_job(store: Store) -> None:
    """Its queue, its executor and its tenant are options of a worker."""
    plain = put_one(store)
    assert reason(store, plain, "no_worker").change == "Start one: holdfast worker MODULE:APP"
    job_id = put_one(store, queue="gpu", executor="gpu-1", tenant="acme")
    command = "holdfast worker MODULE:APP --queues gpu --executor gpu-1 --tenant acme"
    alone = reason(store, job_id, "no_worker", "acme")
    assert (alone.change, "executor gpu-1" in alone.says) == (f"Start one: {command}", True)
    serve(store, tenant="other")
    assert reason(store, job_id, "other_tenants_workers", "*").change == command
    serve(store)
    assert reason(store, job_id, "no_worker_for_queue", "acme").change == command
    health = store.run(store.health.get("acme"))
    assert any(each.code == "unserved_executors" for each in health.reasons)


def test_reasons_of_claimed_jobs(store: Store) -> None:
    forward(store)
    running, waiting = put(store, spec(), spec())
    lease = open_lease(store, "worker-7", ttl=30)
    claim(store, lease)
    claim(store, lease, begin=False)
    cause = only(store, running, "running")
    assert "in attempt 1" in cause.says
    assert "by worker-7" in cause.says
    assert "last heartbeat" in cause.says
    assert "overdue" not in cause.says
    forward(store, 20)
    late = only(store, running, "running")
    overdue = r"2\d s ago, and the next one is overdue; without another one the job is taken over after"
    assert re.search(overdue, late.says)  # the database's clock runs on
    assert "worker-7 has claimed it and not started it" in only(store, waiting, "leased").says
    forward(store, 40)
    for job_id, then in ((running, "taken up again"), (waiting, "queued again")):
        assert codes(store, job_id) == ["lease_expired", "no_worker"]
        gone = reason(store, job_id, "lease_expired")
        assert "that worker is gone" in gone.says
        assert gone.change == f"A worker frees it, and it is {then}."
    serve(store)
    for job_id in (running, waiting):
        assert "The next sweep of a worker frees it" in (only(store, job_id, "lease_expired").change or "")
    store.run(store.leases.recover())
    assert "worker_lost" in reason(store, running, "retry_waiting").says


def test_reasons_of_delayed_jobs(store: Store) -> None:
    later = put_one(store, delay=100)
    assert codes(store, later) == ["not_due", "no_worker"], "each of them prevents it from running"
    assert "it is not due yet" in only(store, later, "not_due").says
    store.run(store.jobs.reschedule([later], Reschedule(delay=50), None, "ada", "default"))
    assert "as ada decided" in only(store, later, "not_due").says
    store.run(store.jobs.operate("cancel", [later], None, "ada", "default"))

    again = put_one(store)
    work(store, BROKEN)
    cause = only(store, again, "retry_waiting")
    assert "broken: it broke" in cause.says
    assert "1 of 9 retries" in cause.says
    assert cause.facts["error_code"] == "broken"
    store.run(store.jobs.operate("cancel", [again], None, "ada", "default"))

    asleep, stopped = put_one(store), put_one(store)
    work(store, Snoozed(60, "rate limited"))
    work(store, Snoozed(60, "worker_stopped"))
    assert "its handler put it off (rate limited)" in only(store, asleep, "snoozed").says
    assert "its worker stopped and handed it back" in only(store, stopped, "snoozed").says
    forward(store, 120)
    assert codes(store, asleep) == ["snoozed", "due", "no_worker"], "all reasons, not only the first"


def test_reasons_of_suspended_jobs(store: Store) -> None:
    calls: list[tuple[dict[str, Any], str, str]] = [
        ({"kind": "sleep", "name": "sleep", "delay": 90}, "sleeping", "its handler sleeps until"),
        (
            {"kind": "event", "name": "paid", "wanted": {"invoice": 7}},
            "waiting_for_event",
            "event paid with invoice = 7",
        ),
        (
            {"kind": "step", "name": "charge", "delay": 9, "tries": 2, "error": {"type": "X", "message": "declined"}},
            "step_retry",
            "its step charge failed 2 times (declined)",
        ),
    ]
    for pause, code, says in calls:
        job_id = put_one(store)
        work(store, Paused({"n": 1, "tries": 1} | pause, []))
        assert says in only(store, job_id, code).says
    approval = asking(store, approvers=("ada", "bob"), quorum=2, summary="Pay 7,000?", not_requester=True)
    store.run(store.approvals.decide(approval.id, ballot("ada"), "default"))
    cause = only(store, approval.job_id, "waiting_for_approval")
    assert "Pay 7,000?" in cause.says
    assert "ada, bob may decide, but not" in cause.says
    assert "1 of 2 approvals" in cause.says
    assert f"approvals approve {approval.id} --by NAME" in (cause.change or "")
    denied = asking(store)
    store.run(store.approvals.decide(denied.id, ballot("eve", verdict="deny"), "default"))
    assert "denied by eve" in only(store, denied.job_id, "denied").says
    unheard = asking(store, expires_in=5)
    forward(store, 10)
    store.run(store.approvals.attend())
    assert "no one decided" in only(store, unheard.job_id, "approval_expired").says


def test_reasons_of_held_jobs(store: Store, by_hand: ByHand) -> None:
    store.run(store.agents.set(Definition(id="planner", name="Planner"), "default"))
    job_id = put_one(store, agent="planner")
    store.run(store.agents.disable("planner", "it loops", "ada", "default"))
    assert "agent_disabled" in codes(store, job_id)
    claim(store, open_lease(store))
    cause = only(store, job_id, "agent_disabled")
    assert "disabled by ada" in cause.says
    assert cause.says.endswith("it loops")
    assert cause.change == "holdfast agents enable planner"
    parked = put_one(store)
    never = "4102444800000000" if store.embedded else "'2100-01-01'"
    with unguarded(by_hand, "job_state"):  # as a later version may do
        by_hand.execute(f"""update job_state set due_at = {never}, note = '{{"held": "moon"}}' where id = '{parked}'""")
    cause = only(store, parked, "held")
    assert (cause.says, cause.facts) == ("it is held back (moon)", {"held": "moon"})


@pytest.mark.req("DP-6", "JF-1")
def test_reasons_of_jobs_without_a_worker(store: Store) -> None:
    job_id = put_one(store)
    assert "no worker is running for tenant default" in only(store, job_id, "no_worker").says
    serve(store, tenant="acme")
    assert codes(store, job_id) == ["no_worker"], "workers of other tenants are invisible to a tenant"
    assert "other tenants (acme)" in reason(store, job_id, "other_tenants_workers", "*").says
    serve(store, queues=("mail", "late"))
    assert "none serves queue default (they serve late, mail)" in only(store, job_id, "no_worker_for_queue").says
    serve(store, kinds=("other",))
    assert "none has a handler for mail.send" in only(store, job_id, "no_worker_for_kind").says
    lease = serve(store, slots=1)
    assert codes(store, job_id) == ["next"]
    store.run(store.executors.set("gpu", "executor", "ada"))
    assert "labels that may not execute (worker)" in reason(store, job_id, "executor_refused").says
    store.run(store.executors.remove("gpu"))
    claim(store, lease)
    behind, urgent = put_one(store), put_one(store, priority=5)
    assert "all of their 1 slots in use" in only(store, urgent, "workers_busy").says
    result = {each.code: each for each in why_of(store, behind).reasons}
    assert result.keys() == {"workers_busy", "jobs_ahead"}
    assert "1 job is before it" in result["jobs_ahead"].says
    assert result["jobs_ahead"].change == f"holdfast jobs move {behind} --first"
    serve(store, slots=8)
    assert codes(store, urgent) == ["next"]


def test_jobs_ahead_are_counted_up_to_a_limit(store: Store) -> None:
    serve(store)
    for _ in range(3):
        put(store, *(spec() for _ in range(MAX_AHEAD // 2)))
    last = put_one(store)
    assert f"{MAX_AHEAD:,} or more jobs are before it" in only(store, last, "jobs_ahead").says


def test_every_reason_has_its_own_function(store: Store) -> None:
    """Each reason is one function in one list; a new job has only the reason that no worker runs."""
    assert len(REASONS) == len({check.__name__ for check in REASONS}) >= 20
    job_id = put_one(store)
    assert codes(store, job_id) == ["no_worker"]
    work(store, Failed("odd", "x" * 5000))
    assert codes(store, job_id) == ["retry_waiting", "no_worker"]
