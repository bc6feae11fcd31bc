"""Jobs held back by several causes: a workflow, a limit, a reservation; and what ``why`` reports for each."""

from __future__ import annotations

import pytest

from holdfast.engine.states import State
from holdfast.features.assembly import Store
from holdfast.features.jobs.store import why
from holdfast.features.jobs.why_reasons import Reason
from holdfast.features.limits.model import ReservationRequest, Rule, uses
from tests.support.direct_sql import ByHand
from tests.support.stores import BROKEN, FINAL, claim, job, new_id, open_lease, put_one, settle, spec
from tests.support.workflows import Flow


def reasons(store: Store, job_id: str) -> dict[str, Reason]:
    return {each.code: each for each in store.run(why(store, job_id, "default")).reasons}


def limit(store: Store, scope: str, name: str, concurrency: int) -> None:
    store.run(store.limits.set(Rule.of(scope, name, concurrency), "ada", "default"))


@pytest.mark.req("HF-2", "DP-14")
def test_why_reports_unfinished_parents(store: Store) -> None:
    flow = Flow(store, {"fetch": "", "check": "", "print": ["fetch", "check"]})
    flow.start()
    cause = reasons(store, flow.ids["print"])["parents"]
    assert cause.says == "it waits for fetch (queued), check (queued)"
    assert cause.facts["parents"] == [flow.ids["fetch"], flow.ids["check"]]
    claims = claim(store, open_lease(store), 2)
    settle(store, claims, FINAL)
    cause = reasons(store, flow.ids["print"])["behind_a_failure"]
    assert cause.says == "it is held back behind fetch (dead_letter), check (dead_letter)"
    assert f"holdfast workflows resume {flow.id}" in str(cause.change)


@pytest.mark.req("HF-2", "SC-16", "SC-10")
def test_why_reports_limits_and_reservations(store: Store) -> None:
    limit(store, "key", "*", 1)
    store.run(store.leases.open("idle", 3600, "*", "worker", kinds=("mail.send",), queues=("default",), slots=4))
    first, second = (put_one(store, uses=uses("ada", ("gpu-0",))) for _ in range(2))
    lease = open_lease(store)
    claims = claim(store, lease, 2)
    assert [each.id for each in claims] == [first]
    cause = reasons(store, second)["limit_reached"]
    assert cause.says == "the limit of key ada is reached: 1 at a time"
    assert "holdfast limits show --key '*'" in str(cause.change)
    assert settle(store, claims) == []

    limit(store, "queue", "default", 0)
    cause = reasons(store, second)["limit_reached"]
    assert cause.says == "the limit of queue default is reached: 0 at a time"
    assert "next" not in reasons(store, second)
    store.run(store.limits.remove("queue", "default", "ada", "default"))

    ask = ReservationRequest(new_id(), "resource", "gpu-0", 60.0, "measuring")
    assert store.run(store.reservations.set(ask, "bob", "default")).state == "active"
    cause = reasons(store, second)["reserved"]
    assert cause.says == "bob has reserved resource gpu-0: measuring"
    assert claim(store, lease) == []
    assert "reserved" in reasons(store, second)


@pytest.mark.req("DP-14", "SC-16")
def test_stopped_workflow_keeps_holding_a_limited_job(store: Store) -> None:
    """When the limit has capacity again, the job stays held: its workflow has stopped."""
    limit(store, "key", "slow", 1)
    slow = {"uses": uses("slow", ())}
    flow = Flow(store, {"a": "", "b": "", "c": ""}, "stop", fields={"a": slow, "b": slow})
    flow.start()
    lease = open_lease(store)
    claims = {each.id: each for each in claim(store, lease, 3)}
    assert set(claims) == {flow.ids["a"], flow.ids["c"]}
    settle(store, [claims[flow.ids["c"]]], FINAL)
    settle(store, [claims[flow.ids["a"]]])
    store.run(store.limits.attend())
    assert claim(store, lease, 3) == []
    assert "workflow_stopped" in reasons(store, flow.ids["b"])
    store.run(store.workflows.resume(flow.id, None, "ada", "default"))
    assert {each.id for each in claim(store, lease, 3)} == {flow.ids["b"], flow.ids["c"]}


@pytest.mark.req("SC-6", "DP-14")
def test_job_of_a_workflow_is_retried_in_place(store: Store, by_hand: ByHand) -> None:
    flow = Flow(store, {"a": "", "b": "a"}, fields={"a": {"retry_as": "new_job"}})
    flow.start()
    settle(store, claim(store, open_lease(store)), BROKEN)
    assert job(store, flow.ids["a"]).state is State.RETRY_WAITING
    child = put_one(store, parent_id=flow.ids["a"], retry_as="new_job")
    assert (job(store, child).workflow_id, job(store, child).retry_as) == (flow.id, None)
    alone = spec(retry_as="new_job")
    assert job(store, put_one(store, retry_as="new_job")).retry_as == "new_job"
    refusal = by_hand.refusal(
        "insert into job (id, tenant, kind, enqueued_by, source_system, created_at, workflow_id, retry_as)"
        " values (:id, 'default', 'k', 'eve', 'test', (select now from present), :flow, 'new_job')",
        {"id": alone.id, "flow": flow.id},
    )
    assert refusal is not None
    assert "retried in place" in str(refusal)
