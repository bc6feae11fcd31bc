"""Workflows (DP-14): the order of jobs, the effect of failures, and counts that follow from the jobs."""

from __future__ import annotations

import pytest

from holdfast.engine.states import State
from holdfast.errors import HoldfastError
from holdfast.features.assembly import Store
from holdfast.features.workflows.model import Addition, WorkflowStatus
from holdfast.stores.requests import Reschedule
from tests.support.direct_sql import ByHand
from tests.support.stores import FINAL, TENANT, claim, forward, job, new_id, open_lease, put_one, settle, state_of
from tests.support.workflows import Flow, check

pytestmark = pytest.mark.req("DP-14")

DIAMOND = {"a": "", "b": "a", "c": "a", "d": ["b", "c"]}


def test_jobs_run_only_after_their_parents_have_ended(store: Store) -> None:
    flow = Flow(store, DIAMOND)
    assert flow.start().created
    assert [node.unmet for node in flow.graph.nodes] == [0, 1, 1, 2]
    waiting = job(store, flow.ids["d"])
    assert (waiting.state, waiting.due_at, waiting.workflow_id) == (State.QUEUED, None, flow.id)
    assert flow.run() == ["a"]
    assert flow.run("b") == ["b"]
    assert flow.run("d") == []
    assert flow.run_all() == [["c"], ["d"]]
    assert flow.status == "succeeded"
    workflow = flow.graph.workflow
    assert (workflow.total, workflow.succeeded, workflow.generator) == (4, 4, "planner")
    assert workflow.finished_at is not None


def test_child_is_claimed_in_the_exchange_that_ends_its_parent(store: Store) -> None:
    from holdfast.engine.settlement import decide
    from holdfast.stores.requests import ClaimRequest
    from tests.support.stores import DONE

    flow = Flow(store, {"a": "", "b": "a"})
    flow.start()
    lease = open_lease(store)
    (first,) = claim(store, lease)
    exchange = store.run(
        store.leases.exchange([decide(first, DONE, 1.0)], ClaimRequest(lease=lease, queues=("default",), want=5))
    )
    assert [each.id for each in exchange.claims] == [flow.ids["b"]]


def test_retried_parent_releases_no_child(store: Store) -> None:
    """`failed` is passed through in the same transaction: the parent has not ended yet."""
    from tests.support.stores import BROKEN

    flow = Flow(store, {"a": "", "b": "a"}, edges={"a>b": "continue"})
    flow.start()
    flow.run(outcome=BROKEN)
    assert state_of(store, flow.ids["a"]) is State.RETRY_WAITING
    assert flow.statuses() == {"a": "open", "b": "open"}
    assert flow.run() == []
    forward(store, 3600)
    assert store.run(store.leases.promote()) == 1
    assert flow.run_all() == [["a"], ["b"]]


@pytest.mark.req("SC-17")
def test_skip_holds_back_only_jobs_behind_the_failure(store: Store) -> None:
    flow = Flow(
        store, {"a": "", "x": "", "b": "a", "c": "b", "y": "x", "z": ["c", "y"]}, "skip", edges={"c>z": "continue"}
    )
    flow.start()
    assert flow.run("a", outcome=FINAL) == ["a"]
    assert flow.statuses() == {"a": "dead", "x": "open", "b": "skipped", "c": "skipped", "y": "open", "z": "open"}
    assert flow.run_all() == [["x"], ["y"], ["z"]]
    assert flow.status == "partially_failed"
    # Jobs behind a dead letter wait, because it may be redriven.
    assert state_of(store, flow.ids["b"]) is State.QUEUED
    assert store.run(store.workflows.resume(flow.id, "mended", "ada", TENANT)).jobs == 1
    assert flow.status == "active"
    assert flow.run_all() == [["a"], ["b"], ["c"]]
    assert flow.status == "succeeded"
    again = store.run(store.workflows.resume(flow.id, None, "ada", TENANT))
    assert (again.refused, again.reason) == (True, "nothing_to_resume")


@pytest.mark.req("SC-17")
def test_stop_holds_back_waiting_jobs_and_lets_running_ones_end(store: Store) -> None:
    from tests.support.stores import BROKEN

    flow = Flow(store, {"a": "", "b": "a", "x": "", "y": "x", "r": "", "w": ""}, "stop")
    flow.start()
    running = claim(store, open_lease(store), 9, kinds=("do.x", "do.r"))
    assert flow.run("a", outcome=FINAL) == ["a"]
    statuses = {"a": "dead", "b": "skipped", "x": "open", "y": "skipped", "r": "open", "w": "skipped"}
    assert flow.statuses() == statuses
    assert flow.run() == []
    x, r = sorted(running, key=lambda each: each.kind != "do.x")
    settle(store, [x])
    settle(store, [r], BROKEN)  # its retry is held like the waiting jobs
    assert flow.statuses() == statuses | {"x": "succeeded", "r": "skipped"}
    assert flow.status == "failed"
    forward(store, 3600)
    assert store.run(store.leases.promote()) == 0
    store.run(store.jobs.operate("redrive", [flow.ids["a"]], None, "ada", TENANT))  # also resumes the workflow
    assert flow.statuses() == {"a": "open", "b": "open", "x": "succeeded", "y": "open", "r": "open", "w": "open"}
    store.run(store.leases.promote())
    assert flow.run_all() == [["a", "r", "w", "y"], ["b"]]
    assert flow.status == "succeeded"


def test_jobs_behind_a_permanent_failure_are_cancelled(store: Store) -> None:
    chain = {"j0": ""} | {f"j{n}": f"j{n - 1}" for n in range(1, 40)}
    flow = Flow(store, chain, fields={"j0": {"deadline_at": forward(store)}})
    flow.start()
    forward(store, 1)
    assert store.run(store.leases.expire()) == 1  # failed permanently: it cannot be redriven
    assert flow.statuses() == {"j0": "failed"} | {f"j{n}": "skipped" for n in range(1, 40)}
    assert state_of(store, flow.ids["j39"]) is State.CANCELLED
    assert flow.status == "failed"
    dead = Flow(store, {"a": "", "b": "a"})
    dead.start()
    dead.run(outcome=FINAL)
    assert state_of(store, dead.ids["b"]) is State.QUEUED
    store.run(store.jobs.operate("discard", [dead.ids["a"]], "no use", "ada", TENANT))
    assert state_of(store, dead.ids["b"]) is State.CANCELLED
    assert (dead.statuses(), dead.status) == ({"a": "cancelled", "b": "skipped"}, "cancelled")


def test_discard_returns_the_states_afterwards(store: Store) -> None:
    flow = Flow(store, {"a": "", "b": "a"})
    flow.start()
    flow.run(outcome=FINAL)
    both = [flow.ids["b"], flow.ids["a"]]
    skipped, dead = store.run(store.jobs.operate("discard", both, "no use", "ada", TENANT))
    assert (dead.refused, dead.state) == (False, State.CANCELLED)
    assert (skipped.refused, skipped.reason, skipped.state) == (True, "not_dead", State.CANCELLED)


def test_cancelled_skipped_job_is_not_resumed(store: Store) -> None:
    flow = Flow(store, {"a": "", "b": "a", "c": "b", "d": "a"})
    flow.start()
    flow.run("a", outcome=FINAL)
    store.run(store.jobs.operate("cancel", [flow.ids["b"]], None, "ada", TENANT))
    store.run(store.workflows.resume(flow.id, None, "ada", TENANT))
    assert flow.statuses() == {"a": "open", "b": "skipped", "c": "skipped", "d": "open"}
    assert flow.run_all() == [["a"], ["d"]]
    assert (flow.status, state_of(store, flow.ids["c"])) == ("cancelled", State.CANCELLED)


def test_cancelling_a_workflow_cancels_its_open_jobs(store: Store) -> None:
    flow = Flow(store, DIAMOND)
    flow.start()
    flow.run("a")
    (running,) = claim(store, open_lease(store), 1)
    answer = store.run(store.workflows.cancel(flow.id, "no longer wanted", "ada", TENANT))
    assert (answer.jobs, answer.refused) == (3, False)
    assert settle(store, running) == [running.id]
    assert flow.status == "cancelled"
    assert {node.state for node in flow.graph.nodes} == {State.SUCCEEDED, State.CANCELLED}
    check(flow.graph)
    again = store.run(store.workflows.cancel(flow.id, None, "ada", TENANT))
    assert (again.refused, again.reason) == (True, "already_finished")
    nowhere = store.run(store.workflows.cancel(new_id(), None, "ada", TENANT))
    assert nowhere.reason == "not_found"


@pytest.mark.req("DP-3", "CX-15")
def test_key_starts_a_workflow_once(store: Store) -> None:
    first = Flow(store, DIAMOND, key="2027-01")
    second = Flow(store, DIAMOND, key="2027-01")
    other = Flow(store, {"a": ""}, key="2027-01")
    assert first.start().created
    answer = second.start()
    assert (answer.id, answer.created, answer.reason) == (first.id, False, "duplicate_key")
    assert other.start().reason == "idempotency_conflict"
    assert len(store.run(store.workflows.list(TENANT))) == 1
    assert sum(store.run(store.jobs.counts(TENANT)).values()) == 4


def test_jobs_can_be_added_until_the_workflow_is_over(store: Store) -> None:
    flow = Flow(store, {"a": "", "b": "a"})
    flow.start()
    flow.run("a")
    assert flow.add({"c": "a", "d": ["b", "c"]}).created
    assert flow.add({"c": "a"}).reason == "name_taken"
    # Every job with its id joins it: so do children of its jobs.
    spawned = put_one(store, "spawned", parent_id=flow.ids["a"])
    assert job(store, spawned).workflow_id == flow.id
    assert flow.graph.workflow.total == 5
    assert flow.run("b", "c") == ["b", "c"]
    assert flow.run_all() == [["d", "spawned"]]
    assert flow.status == "succeeded"
    assert flow.add({"e": "d"}).reason == "workflow_over"
    with pytest.raises(HoldfastError) as refused:
        put_one(store, workflow_id=flow.id)
    assert refused.value.code == "workflow_over"
    stranger = put_one(store)
    failing = Flow(store, {"a": "", "z": ""})
    failing.start()
    failing.run("a", outcome=FINAL)
    assert failing.add({"b": "a", "c": "b", "d": "c"}, {"c>d": "continue"}).created
    assert failing.statuses() == {"a": "dead", "z": "open", "b": "skipped", "c": "skipped", "d": "open"}
    failing.ids["stranger"] = stranger
    with pytest.raises(HoldfastError) as unknown:
        failing.add({"e": "stranger"})
    assert unknown.value.code == "unknown_parent"
    assert failing.run_all() == [["d", "mail.send", "z"]]
    assert failing.status == "partially_failed"


@pytest.mark.req("DP-14", "CX-1")
def test_ends_by_hand_release_children(store: Store, by_hand: ByHand) -> None:
    flow = Flow(store, {"a": "", "b": "a", "c": ["a", "b"], "x": "c"}, edges={"b>c": "continue"})
    flow.start()
    (first,) = claim(store, open_lease(store))
    by_hand.execute(
        "update job_state set state = 'succeeded', lease = null, settled_by = lease,"
        " finished_at = (select now from present) where id = :id",
        {"id": first.id},
    )
    assert flow.statuses()["a"] == "succeeded"
    by_hand.execute(
        "update job_state set state = 'failed', finished_at = (select now from present), error_code = 'x',"
        " error_message = 'x' where id = :id",
        {"id": flow.ids["b"]},
    )
    assert flow.statuses() == {"a": "succeeded", "b": "failed", "c": "open", "x": "open"}
    assert flow.run_all() == [["c"], ["x"]]
    assert flow.status == "partially_failed"


def test_delay_of_a_child_counts_from_the_end_of_its_parents(store: Store) -> None:
    moment = forward(store)
    flow = Flow(store, {"a": "", "b": "a", "c": "a"}, fields={"b": {"delay": 60.0}, "c": {"agent": "planner"}})
    flow.start()
    (verdict,) = store.run(store.jobs.reschedule([flow.ids["b"]], Reschedule(), None, "ada", TENANT))
    assert (verdict.refused, verdict.reason) == (True, "job_held")
    assert store.run(store.agents.resume("planner", 10, TENANT)) == 0
    assert flow.run_all() == [["a"], ["c"]]
    due = job(store, flow.ids["b"]).due_at
    assert due is not None
    assert (due - moment).total_seconds() == 60
    forward(store, 60)
    store.run(store.leases.promote())
    assert flow.run_all() == [["b"]]


@pytest.mark.req("JF-1")
def test_workflow_of_another_tenant_is_not_found(store: Store) -> None:
    flow = Flow(store, DIAMOND)
    flow.start()
    run = store.run
    assert run(store.workflows.get(flow.id, "acme")) is None
    assert run(store.workflows.graph(flow.id, "acme")) is None
    assert run(store.workflows.list("acme")) == []
    assert run(store.workflows.cancel(flow.id, None, "ada", "acme")).reason == "not_found"
    assert run(store.workflows.resume(flow.id, None, "ada", "acme")).reason == "not_found"
    assert run(store.workflows.extend(flow.id, Addition(flow.nodes), "ada", "acme")).reason == "not_found"
    put_one(store, tenant="acme", workflow_id=flow.id)  # in another tenant it is only a label
    assert flow.graph.workflow.total == 4


@pytest.mark.req("DP-6")
def test_generator_cannot_claim_jobs(store: Store, by_hand: ByHand) -> None:
    Flow(store, {"a": ""}).start()
    lease = store.run(store.leases.open("MOT:template", 30, "*", "generator")).id
    with pytest.raises(HoldfastError) as refused:
        claim(store, lease)
    assert refused.value.code == "generator_only"
    refusal = by_hand.refusal(
        "update job_state set state = 'in_progress', attempt = attempt + 1, lease = :lease", {"lease": lease}
    )
    assert refusal is not None
    assert len(claim(store, open_lease(store))) == 1


def test_refused_job_refuses_the_whole_workflow(store: Store) -> None:
    from holdfast.features.agents.model import Definition

    store.run(store.agents.set(Definition(id="planner", name="Planner", kind="other"), TENANT))
    flow = Flow(store, {"a": "", "b": "a"}, fields={"b": {"agent": "planner"}})
    with pytest.raises(HoldfastError) as refused:
        flow.start()
    assert refused.value.code == "job_refused"
    assert store.run(store.workflows.list("*")) == []
    assert store.run(store.jobs.counts("*")) == {}


def test_workflows_are_listed_newest_first_and_parent_results_read(store: Store) -> None:
    from holdfast.engine.outcome import Succeeded

    flow, second = Flow(store, {"a": "", "b": "a"}), Flow(store, {"a": ""}, kind="other")
    flow.start()
    second.start()
    run = store.run
    assert [w.id for w in run(store.workflows.list(TENANT))] == [second.id, flow.id]
    assert [w.id for w in run(store.workflows.list(TENANT, limit=1, before=second.id))] == [flow.id]
    assert [w.kind for w in run(store.workflows.list(TENANT, kind="other"))] == ["other"]
    (a,) = claim(store, open_lease(store), 1)
    settle(store, a, Succeeded('{"pages": 3}'))
    (parent,) = run(store.workflows.parent_results(flow.ids["b"], TENANT))
    assert (parent.name, parent.state, parent.value, parent.kind) == ("a", State.SUCCEEDED, {"pages": 3}, "do.a")
    second.run("a")
    assert [w.id for w in run(store.workflows.list(TENANT, over=True))] == [second.id]
    assert run(store.workflows.list(TENANT, over=False))[0].status is WorkflowStatus.ACTIVE
