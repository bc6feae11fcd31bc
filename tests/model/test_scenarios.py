"""Hand-written scenarios that random moves reach too rarely: every transition, and keys used in every state."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import timedelta
from typing import Any

import pytest

from holdfast.engine.order import Move
from holdfast.engine.retry import Retry
from holdfast.engine.settlement import Ending, Settlement, decide
from holdfast.engine.states import EventType, State
from holdfast.engine.steps import StepEntry
from holdfast.features.agents.model import Definition
from holdfast.features.approvals.model import Ballot, VoteVerdict
from holdfast.stores.requests import ClaimRequest, Reschedule
from tests.model import views
from tests.model.comparison import Comparison
from tests.model.conftest import MakeStores
from tests.model.model import Model
from tests.model.store_driver import StoreDriver
from tests.model.strategies import START, Draft, Wait
from tests.model.strategies import job_id as approval_id
from tests.model.test_machine import NOT_COVERED

pytestmark = pytest.mark.req("CX-1", "CX-15", "SC-2", "SC-4", "DP-5", "DP-7")

AGAIN_AND_OUT: tuple[Ending, ...] = ("retry", "dead_letter")
TWICE = Retry(max_attempts=2, max_crashes=1)
AT_ONCE = Reschedule()
VERDICTS: tuple[VoteVerdict, ...] = ("approve", "deny")


class Scenario:
    """One tenant, one lease at a time. Every command is applied to the model and both stores, which are compared."""

    def __init__(self, make_stores: MakeStores, closing: ExitStack) -> None:
        self.model = Model(START)
        self.comparison = Comparison(self.model, make_stores(closing))
        self.counter = 0
        self.lease = ""
        self.pass_time(0.0)
        self.open_lease()

    def apply(self, command: Callable[[Model | StoreDriver], object]) -> None:
        self.comparison.apply(command)
        self.comparison.check()

    def pass_time(self, seconds: float) -> None:
        self.model.now += timedelta(seconds=seconds)
        for driver in self.comparison.drivers.values():
            driver.set_clock(self.model.now)

    def open_lease(self) -> None:
        self.lease = f"lease-{len(self.model.leases)}"
        self.apply(lambda side: side.open_lease(self.lease, "the worker", 60.0, "*"))

    def enqueue(self, **facts: Any) -> str:
        self.counter += 1
        spec = Draft(**facts).spec(self.counter, self.model.now, None)
        self.apply(lambda side: side.enqueue([spec], "a"))
        return spec.id

    def take(self, *, begin: bool = True) -> None:
        request = ClaimRequest(lease=self.lease, queues=("default",), want=1, begin=begin)
        self.apply(lambda side: side.claim(request))

    def start(self, job_id: str) -> None:
        self.apply(lambda side: side.start(self.lease, [job_id], "*"))

    def end(self, job_id: str, ending: Ending) -> None:
        error = None if ending in ("succeeded", "snooze", "cancel") else "broken"
        item = Settlement(job_id, self.model.jobs[job_id].attempt, ending, 1.0, error, error)
        self.apply(lambda side: side.settle(self.lease, [item], "*"))

    def suspend(self, job_id: str, kind: Any, name: str = "paid", **how: Any) -> str:
        """Suspend an attempt; returns the id of the approval, if it waits for one."""
        self.counter += 1
        approval = approval_id(500_000 + self.counter, self.model.now)
        wait = Wait(kind, name, how.pop("delay", 5.0), how.pop("offset", None), **how)
        item = decide(views.claim_of(self.model.jobs[job_id]), wait.outcome(self.model.now, approval), 0.0)
        self.apply(lambda side: side.settle(self.lease, [item], "*"))
        return approval

    def vote(self, approval: str, person: str, verdict: VoteVerdict = "approve", token: str | None = None) -> None:
        ballot = Ballot(verdict, person, "scenario", None, None, token)
        self.apply(lambda side: side.decide_approval(approval, ballot, "a"))

    def send(self, name: str = "paid", data: str = "{}", key: str | None = None, job: str | None = None) -> None:
        self.pass_time(0.000001)
        label = f"event-{len(self.model.sent_events)}"
        self.apply(lambda side: side.send_event(label, name, data, key, job, "an operator", "a"))

    def save(self, job_id: str, *entries: StepEntry) -> None:
        attempt = self.model.jobs[job_id].attempt
        self.apply(lambda side: side.save_steps(self.lease, [(job_id, attempt, entry) for entry in entries], "*"))

    def wait(self, seconds: float = 1.0) -> None:
        self.pass_time(seconds)
        self.apply(lambda side: side.promote_due(1000, "*"))
        self.apply(lambda side: side.attend_approvals(1000, "*"))
        self.apply(lambda side: side.expire_overdue(1000, "*"))
        self.apply(lambda side: side.recover_leases(1000, "*"))

    def operate(self, operation: Any, job_id: str) -> None:
        self.apply(lambda side: side.operate(operation, [job_id], "a reason", "an operator", "a"))

    def reschedule(self, job_id: str, when: Reschedule = AT_ONCE) -> None:
        self.apply(lambda side: side.reschedule([job_id], when, "a reason", "an operator", "a"))

    def agent(self, what: str, **definition: Any) -> None:
        match what:
            case "register":
                made = Definition.of("planner", **definition)
                self.apply(lambda side: side.set_agent(made, "a"))
            case "disable":
                self.apply(lambda side: side.disable_agent("planner", "a reason", "an operator", "a"))
            case _:
                self.apply(lambda side: side.enable_agent("planner", "a"))
                self.apply(lambda side: side.resume_agent("planner", "a"))

    def move(self, job_id: str, **where: Any) -> None:
        self.apply(lambda side: side.move(job_id, Move.of(**where), "a reason", "an operator", "a"))

    def replace(self, job_id: str, payload: str) -> None:
        self.apply(lambda side: side.replace_payload(job_id, payload, "a reason", "an operator", "a"))

    def state(self, job_id: str) -> State:
        return self.model.jobs[job_id].state


@pytest.fixture
def scenario(make_stores: MakeStores) -> Iterator[Scenario]:
    with ExitStack() as closing:
        yield Scenario(make_stores, closing)


def test_stores_agree_on_every_transition(scenario: Scenario) -> None:
    job = scenario.enqueue(retry=TWICE)
    scenario.take(begin=False)
    scenario.apply(lambda side: side.release(scenario.lease, [job], "*"))
    scenario.take(begin=False)
    scenario.start(job)
    scenario.end(job, "snooze")
    scenario.wait()
    for ending in AGAIN_AND_OUT:
        scenario.take()
        scenario.end(job, ending)
        scenario.wait()
    assert scenario.state(job) is State.DEAD_LETTER
    # A redrive restores the retries.
    scenario.operate("redrive", job)
    for ending in AGAIN_AND_OUT:
        scenario.take()
        scenario.end(job, ending)
        scenario.wait()
    scenario.operate("redrive", job)
    scenario.take()
    scenario.end(job, "crash")
    scenario.wait()
    scenario.take()
    scenario.end(job, "dead_letter")
    scenario.operate("discard", job)
    put_off = scenario.enqueue(delay=60.0)
    scenario.replace(put_off, '{"first":1}')
    scenario.move(put_off, first=True)
    scenario.replace(put_off, '{"second":1e23}')
    scenario.replace(put_off, '{"second":1e23}')
    scenario.reschedule(put_off)
    scenario.replace(put_off, '{"third":"é"}')
    scenario.take()
    scenario.replace(put_off, '{"late":1}')
    scenario.end(put_off, "cancel")
    done, late, stopped = scenario.enqueue(), scenario.enqueue(deadline=1.0, delay=5.0), scenario.enqueue()
    scenario.take()
    scenario.end(done, "succeeded")
    scenario.operate("cancel", stopped)
    scenario.wait(2.0)
    assert scenario.state(late) is State.FAILED
    held, begun = scenario.enqueue(retry=TWICE), scenario.enqueue(retry=TWICE)
    scenario.take(begin=False)
    scenario.take()
    scenario.wait(60.0)
    assert (scenario.state(held), scenario.state(begun)) == (State.QUEUED, State.RETRY_WAITING)
    scenario.open_lease()
    for priority, verdict in enumerate(VERDICTS, 1):
        waiting = scenario.enqueue(priority=priority)
        scenario.take()
        scenario.vote(scenario.suspend(waiting, "ask"), "ada", verdict)
    assert scenario.comparison.types.keys() >= set(EventType) - NOT_COVERED


@pytest.mark.slow
@pytest.mark.req("HF-6")
def test_stores_agree_on_steps_and_events(scenario: Scenario) -> None:
    """Events arrive before, during and after the wait; steps are stored, retried and rewound."""
    job = scenario.enqueue(retry=TWICE)
    scenario.take()
    scenario.save(job, StepEntry(5, "charge", "step", "1e23"))
    scenario.save(job, StepEntry(5, "charge", "step", "2"))
    scenario.suspend(job, "event", match=(("order", 7),), patch=True)
    scenario.send(data='{"order": 8}', key="k")
    scenario.send(data='{"order": 7}', key="k")
    scenario.reschedule(job)
    scenario.take()
    scenario.send(data='{"order": 7.0}')
    scenario.suspend(job, "event", match=(("order", 7),))
    assert scenario.state(job) is State.QUEUED
    scenario.take()
    scenario.suspend(job, "event", "shipped", delay=None)
    scenario.send("shipped", job=scenario.enqueue(priority=-5))
    scenario.send("shipped")
    assert scenario.state(job) is State.QUEUED
    scenario.take()
    scenario.suspend(job, "sleep", offset=3.0)
    scenario.wait(3.0)
    scenario.take()
    scenario.suspend(job, "step", delay=2.5)
    scenario.wait(2.5)
    scenario.take()
    scenario.end(job, "dead_letter")
    scenario.apply(lambda side: side.rewind(job, 3, "an operator", "a"))
    scenario.operate("redrive", job)
    scenario.take()
    scenario.suspend(job, "event", "shipped", since=100.0)
    assert scenario.state(job) is State.QUEUED


@pytest.mark.slow
@pytest.mark.req("CX-7")
def test_stores_agree_on_approvals(scenario: Scenario) -> None:
    """Approvals partly voted, expired, reminded, escalated, withdrawn by a cancel and by a deadline; with tokens."""
    two = (("approvers", ("ada", "bob")), ("quorum", 2), ("escalate_after", 60.0), ("escalate_to", ("eve",)))

    def ask(*question: tuple[str, object], **facts: Any) -> tuple[str, str]:
        job = scenario.enqueue(priority=scenario.counter, **facts)  # before the jobs that resume meanwhile
        scenario.take()
        return job, scenario.suspend(job, "ask", question=question)

    job, approval = ask(*two, ("on_deny", "resume"))
    scenario.apply(lambda side: side.save_approval_token(approval, "h", "bob", 30.0, "an operator", "a"))
    for person, token in (("mallory", None), ("ada", None), ("ada", None), ("", "h"), ("bob", "h"), ("ada", "no")):
        scenario.vote(approval, person, token=token)
    assert scenario.state(job) is State.QUEUED
    scenario.take()
    job, approval = ask(*two, ("expires_in", 120.0), ("remind_every", 31.0))
    for _ in range(4):
        scenario.wait(31.0)
        scenario.vote(approval, "eve")
    assert scenario.model.approvals[approval].record.state == "expired"
    scenario.open_lease()
    for how in ("approve", "remind"):
        ask(("expires_in", 2.5), ("on_expire", how), ("not_requester", True))
        scenario.wait(2.5)
    stopped, _ = ask()
    scenario.operate("cancel", stopped)
    late, _ = ask(deadline=1.0)
    scenario.wait(1.0)
    assert scenario.state(late) is State.FAILED
    assert {approval.record.state for approval in scenario.model.approvals.values()} == {
        "open",
        "approved",
        "expired",
        "withdrawn",
    }


@pytest.mark.slow
@pytest.mark.req("SC-3")
def test_stores_agree_on_moves_in_every_state(scenario: Scenario) -> None:
    """Move jobs that are queued, delayed, waiting for a retry, leased, running and dead: only waiting jobs move."""
    a, b, c, late = scenario.enqueue(), scenario.enqueue(), scenario.enqueue(retry=TWICE), scenario.enqueue(delay=30.0)
    for job, where in ((c, {"first": True}), (late, {"after": c}), (a, {"last": True}), (b, {"before": late})):
        scenario.move(job, **where)
    scenario.move(late, priority=1)
    scenario.move(b, before=late)
    scenario.move(b, priority=0)
    scenario.reschedule(late, Reschedule(delay=60.0))
    scenario.move(late, first=True, priority=0)
    scenario.wait(60.0)
    scenario.move(late, first=True)
    scenario.open_lease()
    scenario.move(c, first=True)
    scenario.take(begin=False)
    scenario.move(c, last=True)
    scenario.move(a, after=c)
    scenario.start(c)
    scenario.move(c, last=True)
    scenario.end(c, "retry")
    scenario.move(c, before=a)
    scenario.move(c, before=a)
    scenario.wait()
    for _ in range(3):
        scenario.take()
    scenario.end(c, "dead_letter")
    scenario.move(c, first=True)


@pytest.mark.slow
def test_stores_agree_on_reschedules_in_every_state(scenario: Scenario) -> None:
    """Reschedule jobs that are queued, delayed, waiting for a retry, leased, running and dead; repeats are recorded
    once."""
    later = Reschedule(delay=60.0, max_attempts=4)
    job = scenario.enqueue(retry=TWICE)
    for when in (later, later, AT_ONCE, AT_ONCE):
        scenario.reschedule(job, when)
    scenario.take(begin=False)
    scenario.reschedule(job)
    scenario.start(job)
    scenario.reschedule(job)
    for when in (later, AT_ONCE):
        scenario.end(job, "retry")
        scenario.reschedule(job, Reschedule(max_attempts=1))
        scenario.reschedule(job, when)
        scenario.wait(60.0)
        scenario.open_lease()
        scenario.take()
    scenario.end(job, "dead_letter")
    scenario.reschedule(job)
    scenario.apply(lambda side: side.operate("redrive", [job], None, "an operator", "a", 7))
    assert scenario.model.jobs[job].max_attempts == 7


@pytest.mark.slow
def test_job_that_loses_its_workers_is_dead_lettered(scenario: Scenario) -> None:
    job = scenario.enqueue(retry=TWICE)
    for _ in range(2):
        scenario.take()
        scenario.wait(60.0)  # the lease expires
        scenario.open_lease()
        scenario.wait()
    assert scenario.state(job) is State.DEAD_LETTER


@pytest.mark.slow
@pytest.mark.req("CX-10")
def test_job_whose_process_crashes_every_time_is_dead_lettered(scenario: Scenario) -> None:
    job = scenario.enqueue(retry=TWICE)
    for _ in range(2):
        scenario.take()
        scenario.end(job, "crash")
        scenario.wait()
    assert scenario.state(job) is State.DEAD_LETTER
    assert (scenario.model.jobs[job].crashes, scenario.model.jobs[job].retries) == (2, 0)


@pytest.mark.slow
@pytest.mark.parametrize("dedupe", ["skip", "coalesce"])
def test_stores_agree_on_content_keys_in_every_state(scenario: Scenario, dedupe: Any) -> None:
    """Enqueue the same content before the claim, during the lease, while it waits for a retry, and after its end."""
    first = scenario.enqueue(content="c", dedupe=dedupe)
    scenario.enqueue(content="c", dedupe=dedupe)
    scenario.take(begin=False)
    scenario.enqueue(content="c", dedupe="skip")
    scenario.start(first)
    scenario.enqueue(content="c", dedupe="skip")
    scenario.end(first, "retry")
    scenario.enqueue(content="c", dedupe="skip")
    scenario.wait()
    scenario.enqueue(content="c", dedupe=dedupe, key="by another name")
    scenario.enqueue(content="c", dedupe=dedupe, key="by another name")
    scenario.take()
    scenario.enqueue(content="c", dedupe=dedupe)
    scenario.end(first, "succeeded")
    scenario.enqueue(content="c", dedupe=dedupe)
    scenario.enqueue(content="c", key="by another name", payload="[]")


@pytest.mark.slow
def test_stores_agree_on_idempotency_keys_in_every_state(scenario: Scenario) -> None:
    first = scenario.enqueue(key="k")
    commands: list[Callable[[], None]] = [
        scenario.take,
        lambda: scenario.end(first, "dead_letter"),
        lambda: scenario.operate("discard", first),
        lambda: None,
    ]
    for command in commands:
        scenario.enqueue(key="k")
        scenario.enqueue(key="k", payload="[1]")
        scenario.enqueue(key="k", kind="report")
        command()


@pytest.mark.slow
@pytest.mark.req("CX-16")
def test_stores_agree_on_agents_in_every_state(scenario: Scenario) -> None:
    """An agent that is only a label, registered, disabled with jobs in every state, and enabled; deferred jobs become
    due."""
    label = scenario.enqueue(agent="planner", retry=TWICE)
    scenario.agent("register", retry=Retry(max_attempts=3), max_wait=10_000, max_payload=20)
    begun, held, later = (scenario.enqueue(agent="planner", delay=delay) for delay in (None, None, 30.0))
    given = scenario.enqueue(agent="planner", retry=TWICE, given=True)
    scenario.enqueue(agent="planner", payload='{"a": "more than twenty"}')
    scenario.take()  # the label's
    scenario.end(label, "retry")
    scenario.take()
    assert [scenario.model.jobs[each].max_attempts for each in (label, begun, given)] == [2, 3, 2]
    scenario.agent("disable")
    scenario.enqueue(agent="planner")
    free = scenario.enqueue()
    scenario.end(begun, "retry")
    scenario.wait(30.0)
    scenario.take()
    assert (scenario.state(free), scenario.state(held)) == (State.IN_PROGRESS, State.QUEUED)
    scenario.take()
    scenario.reschedule(held)
    scenario.reschedule(later)
    scenario.take()
    scenario.wait(600.0)
    scenario.open_lease()
    scenario.take()
    scenario.agent("enable")
    for _ in range(6):
        scenario.take()
    ends = {scenario.state(each) for each in (label, begun, held, later, given)}
    assert ends == {State.IN_PROGRESS}


@pytest.mark.slow
@pytest.mark.req("CX-16", "HK-2", "DP-5")
def test_refused_jobs_of_agents_keep_no_keys(scenario: Scenario) -> None:
    """A refused job neither takes keys from the job that has them nor keeps any."""
    first = scenario.enqueue(content="c", retry=Retry(max_attempts=1))
    scenario.take()
    scenario.end(first, "dead_letter")
    scenario.agent("register")
    scenario.agent("disable")
    scenario.enqueue(agent="planner", content="c", key="k")
    scenario.operate("redrive", first)
    scenario.enqueue(agent="planner", content="c", key="k")  # a duplicate of the first job, which now has the key
    scenario.enqueue(key="k")
    scenario.enqueue(agent="planner", key="k")
    scenario.enqueue(agent="planner", key="another")
    scenario.enqueue(key="another", payload="[1]")
