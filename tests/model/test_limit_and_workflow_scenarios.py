"""Hand-written scenarios of limits and workflows: everything that frees a slot, and every end of a parent."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import pytest

from holdfast.engine.retry import Retry
from holdfast.engine.settlement import Settlement
from holdfast.engine.states import State
from holdfast.features.limits.model import Rule
from holdfast.features.workflows.model import EdgeSpec, NodeSpec, NodeStatus, OnFailure, WorkflowSpec, plan_hash
from holdfast.stores.requests import ClaimRequest
from tests.model.conftest import MakeStores
from tests.model.strategies import Draft
from tests.model.strategies import job_id as flow_id
from tests.model.test_scenarios import Scenario

ONCE = Retry(max_attempts=1, max_crashes=0)
TWICE = Retry(max_attempts=2, max_crashes=1)


class LimitScenario(Scenario):
    def limit(self, scope: str, name: str, most: int, tenant: str = "a") -> None:
        self.apply(lambda side: side.set_limit(Rule(scope, name, most), "an operator", tenant))

    def waiting(self) -> list[int]:
        """Return the waiting jobs of each limit; equal on both stores if no job has two limits."""
        one, other = ([each.waiting for each in p.limits("*")] for p in self.comparison.drivers.values())
        assert one == other
        return one

    def running(self) -> list[str]:
        return [job.id for job in self.model.jobs.values() if job.lease is not None]

    def request(self, want: int, **facts: Any) -> ClaimRequest:
        return ClaimRequest(lease=self.lease, queues=("default", "bulk"), want=want, **facts)

    def claim(self, want: int = 9, **facts: Any) -> list[str]:
        before = self.running()
        self.apply(lambda side: side.claim(self.request(want, **facts)))
        return [job for job in self.running() if job not in before]

    def exchange(self, job: str, want: int = 9) -> list[str]:
        """Settle and claim in one transaction: a slot that the settlement frees is available to the claim."""
        done = [Settlement(job, self.model.jobs[job].attempt, "succeeded")]
        before = self.running()
        self.apply(lambda side: side.exchange(done, self.request(want)))
        return [each for each in self.running() if each not in before]

    def start_workflow(self, policy: OnFailure = "skip", /, **after: str) -> dict[str, str]:
        """``c="a b:continue"``: c runs after a, and after b however b ends. Returns their ids."""
        self.counter += 1
        flow = flow_id(700_000 + self.counter, self.model.now)
        nodes, edges, ids = [], [], {}
        for name, parents in after.items():
            self.counter += 1
            spec = replace(Draft(retry=ONCE).spec(self.counter, self.model.now, None), workflow_id=flow)
            ids[name] = spec.id
            nodes.append(NodeSpec(spec, name, fatal=policy == "stop"))
            for parent, _, own in (each.partition(":") for each in parents.split()):
                edges.append(EdgeSpec(spec.id, ids[parent], own or policy))  # type: ignore[arg-type]
        plan = WorkflowSpec(
            id=flow,
            kind="publish",
            generator="planner",
            enqueued_by="a planner",
            source_system="model",
            nodes=tuple(nodes),
            edges=tuple(edges),
            on_failure=policy,
            plan_hash=plan_hash(nodes, edges, policy),
        )
        self.apply(lambda side: side.start_workflow(plan, "a"))
        return {"flow": flow, **ids}

    def statuses(self, plan: dict[str, str]) -> list[str]:
        return [status.value for status in self.model.workflows[plan["flow"]].status.values()]

    def run(self, job: str, ending: Any = "succeeded") -> None:
        self.claim()
        self.end(job, ending)

    def resume(self, plan: dict[str, str]) -> None:
        self.apply(lambda side: side.resume_workflow(plan["flow"], "a reason", "an operator", "a"))


@pytest.fixture
def scenario(make_stores: MakeStores) -> Iterator[LimitScenario]:
    with ExitStack() as closing:
        yield LimitScenario(make_stores, closing)


@pytest.mark.slow
@pytest.mark.req("SC-16", "CX-1")
def test_stores_agree_on_limits(scenario: LimitScenario) -> None:
    """A freed slot starts the next job in queue order; jobs above a lowered limit keep running."""
    a, b, c, d, e, f, g, h = [scenario.enqueue(retry=TWICE) for _ in range(8)]
    other = scenario.enqueue(kind="report")
    assert scenario.claim(1) == [a]
    scenario.limit("kind", "mail", 1)
    assert scenario.claim() == [other]
    assert scenario.waiting() == [7]
    assert scenario.exchange(a) == [b], "the exchange that settles a job also claims the next"
    scenario.end(b, "retry")
    assert scenario.waiting() == [5]
    assert scenario.claim(begin=False) == [c]
    scenario.apply(lambda side: side.release(scenario.lease, [c], "*"))
    assert scenario.claim() == [c], "a released job keeps its position"
    scenario.move(h, first=True)
    scenario.operate("cancel", c)
    assert scenario.claim() == [h]
    scenario.limit("kind", "mail", 3)
    assert scenario.claim() == [d, e]
    scenario.limit("kind", "mail", 1)
    scenario.end(h, "succeeded")
    scenario.end(d, "snooze")
    assert scenario.claim() == [], "the limit was lowered, and one job still runs"
    scenario.wait(61.0)
    assert scenario.state(e) is State.RETRY_WAITING
    scenario.wait(0.0)
    scenario.open_lease()
    scenario.limit("kind", "mail", 0)
    scenario.apply(lambda side: side.attend_limits())
    assert scenario.claim() == [other]
    scenario.apply(lambda side: side.remove_limit("kind", "mail", "an operator", "a"))
    assert scenario.claim() == [b, d, e, f, g]
    scenario.apply(lambda side: side.attend_limits())
    scenario.limit("kind", "*", 1, "*")
    assert scenario.claim() == []


@pytest.mark.slow
@pytest.mark.req("DP-14", "CX-1")
def test_stores_agree_on_workflows(scenario: LimitScenario) -> None:
    """Jobs of workflows are released, skipped, stopped, resumed and cancelled, by every kind of end."""
    one = scenario.start_workflow("skip", a="", b="a", c="a:continue", d="b c")
    assert scenario.claim(2) == [one["a"]]
    scenario.reschedule(one["b"])
    scenario.end(one["a"], "dead_letter")
    assert scenario.statuses(one) == ["dead", "skipped", "open", "skipped"]
    scenario.resume(one)
    scenario.run(one["a"])
    assert scenario.claim() == [one["b"]]
    scenario.end(one["b"], "fail")
    scenario.end(one["c"], "succeeded")
    assert scenario.statuses(one) == ["succeeded", "failed", "succeeded", "skipped"]
    assert scenario.state(one["d"]) is State.CANCELLED

    two = scenario.start_workflow("stop", a="", b="", c="a b", d="c:continue")
    assert scenario.claim(2) == [two["a"], two["b"]]
    scenario.end(two["a"], "dead_letter")
    assert scenario.statuses(two) == ["dead", "open", "skipped", "skipped"], "all waiting jobs are skipped"
    scenario.end(two["b"], "snooze")
    scenario.wait(1.0)
    scenario.move(two["b"], first=True)
    scenario.resume(two)
    scenario.run(two["a"])
    scenario.wait(1.0)
    scenario.run(two["b"])
    assert scenario.statuses(two)[:2] == [NodeStatus.SUCCEEDED] * 2
    scenario.apply(lambda side: side.cancel_workflow(two["flow"], None, "an operator", "a"))
    scenario.apply(lambda side: side.cancel_workflow(two["flow"], None, "an operator", "a"))

    three = scenario.start_workflow("skip", a="", b="a", c="a:stop")
    scenario.run(three["a"], "dead_letter")
    both = [three["b"], three["a"]]
    scenario.apply(lambda side: side.operate("discard", both, "a reason", "an operator", "a"))
    assert scenario.statuses(three) == ["cancelled", "skipped", "skipped"]

    scenario.limit("kind", "mail", 1)
    four = scenario.start_workflow("stop", a="", b="", c="a")
    assert scenario.claim() == [four["a"]]
    assert scenario.exchange(four["a"]) == [four["b"]]
    assert scenario.claim() == []
    scenario.end(four["b"], "dead_letter")
    assert scenario.statuses(four) == ["succeeded", "dead", "skipped"], "a limit does not release a skipped job"
    scenario.resume(four)
    assert scenario.claim() == [four["b"]]
