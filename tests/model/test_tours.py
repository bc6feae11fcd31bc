"""Walks that chance takes too seldom, laid out by hand: every step of the table, and keys met at odd moments."""

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
from holdfast.features.approvals.model import Ballot, VerdictWord
from holdfast.stores.requests import ClaimRequest, Reschedule
from tests.model import views
from tests.model.comparison import Comparison
from tests.model.conftest import Make
from tests.model.drafts import START, Draft, Wait
from tests.model.drafts import job_id as approval_id
from tests.model.model import Model
from tests.model.player import Player
from tests.model.test_machine import ELSEWHERE

pytestmark = pytest.mark.req("CX-1", "CX-15", "SC-2", "SC-4", "DP-5", "DP-7")

AGAIN_AND_OUT: tuple[Ending, ...] = ("retry", "bury")
TWICE = Retry(max_attempts=2, max_crashes=1)
AT_ONCE = Reschedule()
VERDICTS: tuple[VerdictWord, ...] = ("approve", "deny")


class Tour:
    """One tenant, one lease at a time; what is played on all sides is compared on all sides."""

    def __init__(self, make: Make, closing: ExitStack) -> None:
        self.model = Model(START)
        self.comparison = Comparison(self.model, make(closing))
        self.numbers = 0
        self.lease = ""
        self.pass_time(0.0)
        self.open_lease()

    def play(self, command: Callable[[Model | Player], object]) -> None:
        self.comparison.play(command)
        self.comparison.check()

    def pass_time(self, seconds: float) -> None:
        self.model.now += timedelta(seconds=seconds)
        for player in self.comparison.players.values():
            player.set_clock(self.model.now)

    def open_lease(self) -> None:
        self.lease = f"lease-{len(self.model.leases)}"
        self.play(lambda side: side.open_lease(self.lease, "the worker", 60.0, "*"))

    def put(self, **facts: Any) -> str:
        self.numbers += 1
        spec = Draft(**facts).spec(self.numbers, self.model.now, None)
        self.play(lambda side: side.enqueue([spec], "a"))
        return spec.id

    def take(self, *, begin: bool = True) -> None:
        request = ClaimRequest(lease=self.lease, queues=("default",), want=1, begin=begin)
        self.play(lambda side: side.claim(request))

    def start(self, job_id: str) -> None:
        self.play(lambda side: side.start(self.lease, [job_id], "*"))

    def end(self, job_id: str, ending: Ending) -> None:
        error = None if ending in ("succeeded", "snooze", "cancel") else "broken"
        item = Settlement(job_id, self.model.jobs[job_id].attempt, ending, 1.0, error, error)
        self.play(lambda side: side.settle(self.lease, [item], "*"))

    def let_go(self, job_id: str, kind: Any, name: str = "paid", **how: Any) -> str:
        """End an attempt to wait; answers the id of the approval, if that is what it waits for."""
        self.numbers += 1
        approval = approval_id(500_000 + self.numbers, self.model.now)
        wait = Wait(kind, name, how.pop("delay", 5.0), how.pop("offset", None), **how)
        item = decide(views.claim_of(self.model.jobs[job_id]), wait.outcome(self.model.now, approval), 0.0)
        self.play(lambda side: side.settle(self.lease, [item], "*"))
        return approval

    def say(self, approval: str, person: str, verdict: VerdictWord = "approve", token: str | None = None) -> None:
        ballot = Ballot(verdict, person, "tour", None, None, token)
        self.play(lambda side: side.decide_approval(approval, ballot, "a"))

    def send(self, name: str = "paid", data: str = "{}", key: str | None = None, job: str | None = None) -> None:
        self.pass_time(0.000001)
        label = f"event-{len(self.model.told)}"
        self.play(lambda side: side.send_event(label, name, data, key, job, "somebody", "a"))

    def save(self, job_id: str, *entries: StepEntry) -> None:
        attempt = self.model.jobs[job_id].attempt
        self.play(lambda side: side.save_steps(self.lease, [(job_id, attempt, entry) for entry in entries], "*"))

    def wait(self, seconds: float = 1.0) -> None:
        self.pass_time(seconds)
        self.play(lambda side: side.promote_due(1000, "*"))
        self.play(lambda side: side.attend_approvals(1000, "*"))
        self.play(lambda side: side.expire_overdue(1000, "*"))
        self.play(lambda side: side.reap_lapsed(1000, "*"))

    def operate(self, operation: Any, job_id: str) -> None:
        self.play(lambda side: side.operate(operation, [job_id], "a reason", "somebody", "a"))

    def reschedule(self, job_id: str, when: Reschedule = AT_ONCE) -> None:
        self.play(lambda side: side.reschedule([job_id], when, "a reason", "somebody", "a"))

    def agent(self, what: str, **definition: Any) -> None:
        match what:
            case "register":
                made = Definition.of("planner", **definition)
                self.play(lambda side: side.register_agent(made, "a"))
            case "disable":
                self.play(lambda side: side.disable_agent("planner", "a reason", "somebody", "a"))
            case _:
                self.play(lambda side: side.enable_agent("planner", "a"))
                self.play(lambda side: side.resume_agent("planner", "a"))

    def move(self, job_id: str, **place: Any) -> None:
        self.play(lambda side: side.move(job_id, Move.of(**place), "a reason", "somebody", "a"))

    def replace(self, job_id: str, payload: str) -> None:
        self.play(lambda side: side.replace_payload(job_id, payload, "a reason", "somebody", "a"))

    def state(self, job_id: str) -> State:
        return self.model.jobs[job_id].state


@pytest.fixture
def tour(make: Make) -> Iterator[Tour]:
    with ExitStack() as closing:
        yield Tour(make, closing)


def test_every_step_of_the_table(tour: Tour) -> None:
    job = tour.put(retry=TWICE)
    tour.take(begin=False)
    tour.play(lambda side: side.release(tour.lease, [job], "*"))
    tour.take(begin=False)
    tour.start(job)
    tour.end(job, "snooze")
    tour.wait()
    for ending in AGAIN_AND_OUT:
        tour.take()
        tour.end(job, ending)
        tour.wait()
    assert tour.state(job) is State.DEAD_LETTER
    # With its retries before it again: twice more.
    tour.operate("redrive", job)
    for ending in AGAIN_AND_OUT:
        tour.take()
        tour.end(job, ending)
        tour.wait()
    tour.operate("redrive", job)
    tour.take()
    tour.end(job, "crash")
    tour.wait()
    tour.take()
    tour.end(job, "bury")
    tour.operate("discard", job)
    put_off = tour.put(delay=60.0)
    tour.replace(put_off, '{"first":1}')
    tour.move(put_off, first=True)
    tour.replace(put_off, '{"second":1e23}')
    tour.replace(put_off, '{"second":1e23}')
    tour.reschedule(put_off)
    tour.replace(put_off, '{"third":"é"}')
    tour.take()
    tour.replace(put_off, '{"late":1}')
    tour.end(put_off, "cancel")
    done, late, stopped = tour.put(), tour.put(deadline=1.0, delay=5.0), tour.put()
    tour.take()
    tour.end(done, "succeeded")
    tour.operate("cancel", stopped)
    tour.wait(2.0)
    assert tour.state(late) is State.FAILED
    held, begun = tour.put(retry=TWICE), tour.put(retry=TWICE)
    tour.take(begin=False)
    tour.take()
    tour.wait(60.0)
    assert (tour.state(held), tour.state(begun)) == (State.QUEUED, State.RETRY_WAITING)
    tour.open_lease()
    for priority, verdict in enumerate(VERDICTS, 1):
        asked = tour.put(priority=priority)
        tour.take()
        tour.say(tour.let_go(asked, "ask"), "ada", verdict)
    assert tour.comparison.types.keys() >= set(EventType) - ELSEWHERE


@pytest.mark.slow
@pytest.mark.req("HF-6")
def test_steps_and_waits_at_every_stage(tour: Tour) -> None:
    """Told before it waits, while it waits, while it runs again, after it was told; kept, tried again, forgotten."""
    job = tour.put(retry=TWICE)
    tour.take()
    tour.save(job, StepEntry(5, "charge", "step", "1e23"))
    tour.save(job, StepEntry(5, "charge", "step", "2"))
    tour.let_go(job, "event", match=(("order", 7),), patch=True)
    tour.send(data='{"order": 8}', key="k")
    tour.send(data='{"order": 7}', key="k")
    tour.reschedule(job)
    tour.take()
    tour.send(data='{"order": 7.0}')
    tour.let_go(job, "event", match=(("order", 7),))
    assert tour.state(job) is State.QUEUED
    tour.take()
    tour.let_go(job, "event", "shipped", delay=None)
    tour.send("shipped", job=tour.put(priority=-5))
    tour.send("shipped")
    assert tour.state(job) is State.QUEUED
    tour.take()
    tour.let_go(job, "sleep", offset=3.0)
    tour.wait(3.0)
    tour.take()
    tour.let_go(job, "step", delay=2.5)
    tour.wait(2.5)
    tour.take()
    tour.end(job, "bury")
    tour.play(lambda side: side.rewind(job, 3, "somebody", "a"))
    tour.operate("redrive", job)
    tour.take()
    tour.let_go(job, "event", "shipped", since=100.0)
    assert tour.state(job) is State.QUEUED


@pytest.mark.slow
@pytest.mark.req("CX-7")
def test_approvals_at_every_stage(tour: Tour) -> None:
    """Half decided, decided by time, reminded of, escalated, withdrawn by a cancel and by a deadline; with tokens."""
    two = (("approvers", ("ada", "bob")), ("quorum", 2), ("escalate_after", 60.0), ("escalate_to", ("eve",)))

    def ask(*question: tuple[str, object], **facts: Any) -> tuple[str, str]:
        job = tour.put(priority=tour.numbers, **facts)  # before those that go on meanwhile
        tour.take()
        return job, tour.let_go(job, "ask", question=question)

    job, approval = ask(*two, ("on_deny", "resume"))
    tour.play(lambda side: side.keep_approval_token(approval, "h", "bob", 30.0, "somebody", "a"))
    for person, token in (("mallory", None), ("ada", None), ("ada", None), ("", "h"), ("bob", "h"), ("ada", "no")):
        tour.say(approval, person, token=token)
    assert tour.state(job) is State.QUEUED
    tour.take()
    job, approval = ask(*two, ("expires_in", 120.0), ("remind_every", 31.0))
    for _ in range(4):
        tour.wait(31.0)
        tour.say(approval, "eve")
    assert tour.model.approvals[approval].seen.state == "expired"
    tour.open_lease()
    for how in ("approve", "remind"):
        ask(("expires_in", 2.5), ("on_expire", how), ("not_requester", True))
        tour.wait(2.5)
    stopped, _ = ask()
    tour.operate("cancel", stopped)
    late, _ = ask(deadline=1.0)
    tour.wait(1.0)
    assert tour.state(late) is State.FAILED
    assert {approval.seen.state for approval in tour.model.approvals.values()} == {
        "open",
        "approved",
        "expired",
        "withdrawn",
    }


@pytest.mark.slow
@pytest.mark.req("SC-3")
def test_moving_at_every_stage(tour: Tour) -> None:
    """Waiting for its turn, its time, its retry; held, begun, dead: a place among those that wait, and no other."""
    a, b, c, late = tour.put(), tour.put(), tour.put(retry=TWICE), tour.put(delay=30.0)
    for job, place in ((c, {"first": True}), (late, {"after": c}), (a, {"last": True}), (b, {"before": late})):
        tour.move(job, **place)
    tour.move(late, priority=1)
    tour.move(b, before=late)
    tour.move(b, priority=0)
    tour.reschedule(late, Reschedule(delay=60.0))
    tour.move(late, first=True, priority=0)
    tour.wait(60.0)
    tour.move(late, first=True)
    tour.open_lease()
    tour.move(c, first=True)
    tour.take(begin=False)
    tour.move(c, last=True)
    tour.move(a, after=c)
    tour.start(c)
    tour.move(c, last=True)
    tour.end(c, "retry")
    tour.move(c, before=a)
    tour.move(c, before=a)
    tour.wait()
    for _ in range(3):
        tour.take()
    tour.end(c, "bury")
    tour.move(c, first=True)


@pytest.mark.slow
def test_rescheduling_at_every_stage(tour: Tour) -> None:
    """Waiting for its turn, its time, its retry; held, begun, dead; and the same words twice are told once."""
    later = Reschedule(delay=60.0, max_attempts=4)
    job = tour.put(retry=TWICE)
    for when in (later, later, AT_ONCE, AT_ONCE):
        tour.reschedule(job, when)
    tour.take(begin=False)
    tour.reschedule(job)
    tour.start(job)
    tour.reschedule(job)
    for when in (later, AT_ONCE):
        tour.end(job, "retry")
        tour.reschedule(job, Reschedule(max_attempts=1))
        tour.reschedule(job, when)
        tour.wait(60.0)
        tour.open_lease()
        tour.take()
    tour.end(job, "bury")
    tour.reschedule(job)
    tour.play(lambda side: side.operate("redrive", [job], None, "somebody", "a", 7))
    assert tour.model.jobs[job].max_attempts == 7


@pytest.mark.slow
def test_a_job_that_costs_its_workers_is_buried(tour: Tour) -> None:
    job = tour.put(retry=TWICE)
    for _ in range(2):
        tour.take()
        tour.wait(60.0)  # the lease lapses
        tour.open_lease()
        tour.wait()
    assert tour.state(job) is State.DEAD_LETTER


@pytest.mark.slow
@pytest.mark.req("CX-10")
def test_a_job_whose_process_dies_every_time_is_buried(tour: Tour) -> None:
    job = tour.put(retry=TWICE)
    for _ in range(2):
        tour.take()
        tour.end(job, "crash")
        tour.wait()
    assert tour.state(job) is State.DEAD_LETTER
    assert (tour.model.jobs[job].crashes, tour.model.jobs[job].retries) == (2, 0)


@pytest.mark.slow
@pytest.mark.parametrize("dedupe", ["skip", "coalesce"])
def test_the_same_content_at_every_stage(tour: Tour, dedupe: Any) -> None:
    """Before it is taken, while it is held, while it waits for its second try, and after its end."""
    first = tour.put(content="c", dedupe=dedupe)
    tour.put(content="c", dedupe=dedupe)
    tour.take(begin=False)
    tour.put(content="c", dedupe="skip")
    tour.start(first)
    tour.put(content="c", dedupe="skip")
    tour.end(first, "retry")
    tour.put(content="c", dedupe="skip")
    tour.wait()
    tour.put(content="c", dedupe=dedupe, key="by another name")
    tour.put(content="c", dedupe=dedupe, key="by another name")
    tour.take()
    tour.put(content="c", dedupe=dedupe)
    tour.end(first, "succeeded")
    tour.put(content="c", dedupe=dedupe)
    tour.put(content="c", key="by another name", payload="[]")


@pytest.mark.slow
def test_the_same_key_at_every_stage(tour: Tour) -> None:
    first = tour.put(key="k")
    go_on: list[Callable[[], None]] = [
        tour.take,
        lambda: tour.end(first, "bury"),
        lambda: tour.operate("discard", first),
        lambda: None,
    ]
    for step in go_on:
        tour.put(key="k")
        tour.put(key="k", payload="[1]")
        tour.put(key="k", kind="report")
        step()


@pytest.mark.slow
@pytest.mark.req("CX-16")
def test_an_agent_at_every_stage(tour: Tour) -> None:
    """A label, registered, disabled with jobs in every stage of theirs, enabled; held jobs that come by themselves."""
    label = tour.put(agent="planner", retry=TWICE)
    tour.agent("register", retry=Retry(max_attempts=3), max_wait=10_000, max_payload=20)
    begun, held, later = (tour.put(agent="planner", delay=delay) for delay in (None, None, 30.0))
    given = tour.put(agent="planner", retry=TWICE, given=True)
    tour.put(agent="planner", payload='{"a": "more than twenty"}')
    tour.take()  # the label's
    tour.end(label, "retry")
    tour.take()
    assert [tour.model.jobs[each].max_attempts for each in (label, begun, given)] == [2, 3, 2]
    tour.agent("disable")
    tour.put(agent="planner")
    free = tour.put()
    tour.end(begun, "retry")
    tour.wait(30.0)
    tour.take()
    assert (tour.state(free), tour.state(held)) == (State.IN_PROGRESS, State.QUEUED)
    tour.take()
    tour.reschedule(held)
    tour.reschedule(later)
    tour.take()
    tour.wait(600.0)
    tour.open_lease()
    tour.take()
    tour.agent("enable")
    for _ in range(6):
        tour.take()
    ends = {tour.state(each) for each in (label, begun, held, later, given)}
    assert ends == {State.IN_PROGRESS}


@pytest.mark.slow
@pytest.mark.req("CX-16", "HK-2", "DP-5")
def test_keys_of_what_an_agent_refuses(tour: Tour) -> None:
    """Nothing is taken from whoever had them before, and nothing kept."""
    first = tour.put(content="c", retry=Retry(max_attempts=1))
    tour.take()
    tour.end(first, "bury")
    tour.agent("register")
    tour.agent("disable")
    tour.put(agent="planner", content="c", key="k")
    tour.operate("redrive", first)
    tour.put(agent="planner", content="c", key="k")  # the first one stands for it, and from now on for its key
    tour.put(key="k")
    tour.put(agent="planner", key="k")
    tour.put(agent="planner", key="another")
    tour.put(key="another", payload="[1]")
