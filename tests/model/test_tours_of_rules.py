"""Walks around limits and workflows, laid out by hand: whatever frees a place, and whatever ends a parent."""

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
from holdfast.features.workflows.model import EdgeSpec, NodeSpec, OnFailure, Standing, WorkflowSpec, plan_hash
from holdfast.stores.requests import ClaimRequest
from tests.model.conftest import Make
from tests.model.drafts import Draft
from tests.model.drafts import job_id as flow_id
from tests.model.test_tours import Tour

ONCE = Retry(max_attempts=1, max_crashes=0)
TWICE = Retry(max_attempts=2, max_crashes=1)


class RuleTour(Tour):
    def limit(self, scope: str, name: str, most: int, tenant: str = "a") -> None:
        self.play(lambda side: side.set_limit(Rule(scope, name, most), "somebody", tenant))

    def waiting(self) -> list[int]:
        """At each limit; the same on both stores where nobody is under two."""
        one, other = ([each.waiting for each in p.limits("*")] for p in self.comparison.players.values())
        assert one == other
        return one

    def running(self) -> list[str]:
        return [job.id for job in self.model.jobs.values() if job.lease is not None]

    def request(self, want: int, **facts: Any) -> ClaimRequest:
        return ClaimRequest(lease=self.lease, queues=("default", "bulk"), want=want, **facts)

    def claim(self, want: int = 9, **facts: Any) -> list[str]:
        before = self.running()
        self.play(lambda side: side.claim(self.request(want, **facts)))
        return [job for job in self.running() if job not in before]

    def turn(self, job: str, want: int = 9) -> list[str]:
        """Settle and claim in one transaction: what is freed by the one is there for the other."""
        done = [Settlement(job, self.model.jobs[job].attempt, "succeeded")]
        before = self.running()
        self.play(lambda side: side.take_turn(done, self.request(want)))
        return [each for each in self.running() if each not in before]

    def plan(self, policy: OnFailure = "skip", /, **after: str) -> dict[str, str]:
        """``c="a b:continue"``: c is after a, and after b whatever becomes of it. Answers their ids."""
        self.numbers += 1
        flow = flow_id(700_000 + self.numbers, self.model.now)
        nodes, edges, ids = [], [], {}
        for name, parents in after.items():
            self.numbers += 1
            spec = replace(Draft(retry=ONCE).spec(self.numbers, self.model.now, None), workflow_id=flow)
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
        self.play(lambda side: side.start_workflow(plan, "a"))
        return {"flow": flow, **ids}

    def stands(self, plan: dict[str, str]) -> list[str]:
        return [standing.value for standing in self.model.flows[plan["flow"]].standing.values()]

    def run(self, job: str, ending: Any = "succeeded") -> None:
        self.claim()
        self.end(job, ending)

    def resume(self, plan: dict[str, str]) -> None:
        self.play(lambda side: side.resume_workflow(plan["flow"], "a reason", "somebody", "a"))


@pytest.fixture
def tour(make: Make) -> Iterator[RuleTour]:
    with ExitStack() as closing:
        yield RuleTour(make, closing)


@pytest.mark.slow
@pytest.mark.req("SC-16", "CX-1")
def test_a_limit_at_every_stage(tour: RuleTour) -> None:
    """Whatever frees a place lets the next one go on, in queue order; whatever is above a lowered limit runs on."""
    a, b, c, d, e, f, g, h = [tour.put(retry=TWICE) for _ in range(8)]
    other = tour.put(kind="report")
    assert tour.claim(1) == [a]
    tour.limit("kind", "mail", 1)
    assert tour.claim() == [other]
    assert tour.waiting() == [7]
    assert tour.turn(a) == [b], "in the very turn that settles"
    tour.end(b, "retry")
    assert tour.waiting() == [5]
    assert tour.claim(begin=False) == [c]
    tour.play(lambda side: side.release(tour.lease, [c], "*"))
    assert tour.claim() == [c], "it stands where it stood"
    tour.move(h, first=True)
    tour.operate("cancel", c)
    assert tour.claim() == [h]
    tour.limit("kind", "mail", 3)
    assert tour.claim() == [d, e]
    tour.limit("kind", "mail", 1)
    tour.end(h, "succeeded")
    tour.end(d, "snooze")
    assert tour.claim() == [], "it was lowered, and one still runs"
    tour.wait(61.0)
    assert tour.state(e) is State.RETRY_WAITING
    tour.wait(0.0)
    tour.open_lease()
    tour.limit("kind", "mail", 0)
    tour.play(lambda side: side.attend_limits())
    assert tour.claim() == [other]
    tour.play(lambda side: side.remove_limit("kind", "mail", "somebody", "a"))
    assert tour.claim() == [b, d, e, f, g]
    tour.play(lambda side: side.attend_limits())
    tour.limit("kind", "*", 1, "*")
    assert tour.claim() == []


@pytest.mark.slow
@pytest.mark.req("DP-14", "CX-1")
def test_a_workflow_at_every_stage(tour: RuleTour) -> None:
    """Released, skipped, stopped, brought back, cancelled: by ends of every sort."""
    one = tour.plan("skip", a="", b="a", c="a:continue", d="b c")
    assert tour.claim(2) == [one["a"]]
    tour.reschedule(one["b"])
    tour.end(one["a"], "bury")
    assert tour.stands(one) == ["dead", "skipped", "open", "skipped"]
    tour.resume(one)
    tour.run(one["a"])
    assert tour.claim() == [one["b"]]
    tour.end(one["b"], "fail")
    tour.end(one["c"], "succeeded")
    assert tour.stands(one) == ["succeeded", "failed", "succeeded", "skipped"]
    assert tour.state(one["d"]) is State.CANCELLED

    two = tour.plan("stop", a="", b="", c="a b", d="c:continue")
    assert tour.claim(2) == [two["a"], two["b"]]
    tour.end(two["a"], "bury")
    assert tour.stands(two) == ["dead", "open", "skipped", "skipped"], "whatever waits"
    tour.end(two["b"], "snooze")
    tour.wait(1.0)
    tour.move(two["b"], first=True)
    tour.resume(two)
    tour.run(two["a"])
    tour.wait(1.0)
    tour.run(two["b"])
    assert tour.stands(two)[:2] == [Standing.SUCCEEDED] * 2
    tour.play(lambda side: side.cancel_workflow(two["flow"], None, "somebody", "a"))
    tour.play(lambda side: side.cancel_workflow(two["flow"], None, "somebody", "a"))

    three = tour.plan("skip", a="", b="a", c="a:stop")
    tour.run(three["a"], "bury")
    both = [three["b"], three["a"]]
    tour.play(lambda side: side.operate("discard", both, "a reason", "somebody", "a"))
    assert tour.stands(three) == ["cancelled", "skipped", "skipped"]

    tour.limit("kind", "mail", 1)
    four = tour.plan("stop", a="", b="", c="a")
    assert tour.claim() == [four["a"]]
    assert tour.turn(four["a"]) == [four["b"]]
    assert tour.claim() == []
    tour.end(four["b"], "bury")
    assert tour.stands(four) == ["succeeded", "dead", "skipped"], "a limit does not let it go on"
    tour.resume(four)
    assert tour.claim() == [four["b"]]
