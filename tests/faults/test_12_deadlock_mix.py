"""Fault 12: all writing operations run at once on the same jobs: no error escapes, and no operation is lost.

Each thread records the operations that were confirmed. Afterwards the records are compared with the ledger: a confirmed
cancellation is there with its actor, and so are settlements, decisions, events and steps.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest

from holdfast.engine.job import Claim
from holdfast.engine.order import Move
from holdfast.engine.outcome import Failed, Outcome, Snoozed, Succeeded
from holdfast.engine.settlement import Settlement, decide
from holdfast.engine.states import State
from holdfast.errors import StaleLease
from holdfast.features.approvals.model import VoteVerdict
from holdfast.features.assembly import Store, open_store
from holdfast.stores.requests import ClaimRequest, JobFilter, OperatorAction
from tests.faults.checker import check
from tests.support.direct_sql import PostgresByHand
from tests.support.steps import approvals, asks, ballot, entry, say, send, sleeps, waits
from tests.support.stores import apply, claim, enqueue, new_id, open_lease, spec, tries

pytestmark = pytest.mark.req("CX-1", "CX-11", "DP-7", "DP-8", "SC-19")

ENDS: list[Outcome] = [Succeeded("1"), Succeeded(), Failed("broken", "it broke"), Snoozed(0.0, "later")]
ENDS += [Failed("broken", "for good", final=True)] * 2
TYPES = {Succeeded: "succeed", Failed: "fail", Snoozed: "snooze"}
NAMES = ("paid", "shipped", "refunded")


class Mix:
    """The threads of the test, the jobs so far, and the confirmed operations."""

    def __init__(self, store: Store, choice: random.Random, seconds: float) -> None:
        self.store, self.choice, self.seconds = store, choice, seconds
        self.ids: list[str] = []
        self.confirmed: Counter[tuple[str, str, str]] = Counter()
        """(job, operation, actor) of every confirmed operation."""
        self.saved_steps: set[tuple[str, int]] = set()
        """(job, number) of every durable step that was confirmed as stored."""

    def some(self, choice: random.Random, count: int) -> list[str]:
        known = self.ids[-400:]
        return choice.sample(known, min(count, len(known)))  # unordered: the operations must sort them

    def is_representative(self) -> bool:
        """Whether enough kinds of operations were confirmed for the test to be meaningful."""
        kinds = {operation for _, operation, _ in tuple(self.confirmed)}
        ended = kinds & {"cancel", "redrive", "discard", "succeed", "fail", "snooze"}
        return len(ended) >= 4 and len(kinds & {"ask", "approve", "deny"}) >= 2 and len(self.saved_steps) > 10

    # -- the threads -----------------------------------------------------------------------------------------------

    def produce(self, choice: random.Random, name: str) -> None:
        keyed = {"key": f"k-{choice.randint(1, 200)}"} if choice.random() < 0.5 else {}
        specs = [spec(retry=tries(3, crashes=100), delay=choice.choice([None, 0.001]))]
        specs += [spec(retry=tries(3, crashes=100), payload=keyed, **keyed)]
        self.ids += [result.id for result in enqueue(self.store, *specs) if result.created and result.id]

    def work(self, choice: random.Random, name: str) -> None:
        lease = open_lease(self.store, name, ttl=choice.choice([0.05, 30.0]))
        begin = choice.random() < 0.7
        try:
            claims = claim(self.store, lease, choice.randint(1, 20), begin=begin)
            if not begin and claims:
                begun = self.store.run(self.store.leases.start(lease, [each.id for each in claims], "*"))
                self.confirmed.update((job, "start", name) for job in begun)
                for each in claims:
                    each.attempt = begun.get(each.id, 0)
                claims = [each for each in claims if each.attempt]
        except StaleLease:
            return
        choice.shuffle(claims)
        if not claims or choice.random() < 0.2:  # the worker is lost; a sweep must recover its jobs
            return
        entries = [(each.id, each.attempt, entry(each.attempt)) for each in claims]
        saved = self.store.run(self.store.steps.save(lease, entries, "*"))
        stale = {each.job_id for each in saved}
        self.saved_steps.update((job_id, n) for job_id, n, _ in entries if job_id not in stale)
        ends = [self.end(choice, each) for each in claims]
        if choice.random() < 0.5:
            request = ClaimRequest(lease=lease, queues=("default",), want=0)
            lost = self.store.run(self.store.leases.exchange([each for _, each in ends], request)).stale
        else:
            lost = apply(self.store, lease, *(each for _, each in ends))
        self.confirmed.update((each.id, operation, name) for operation, each in ends if each.id not in lost)

    def end(self, choice: random.Random, each: Claim) -> tuple[str, Settlement]:
        """Choose a random end, including every kind of wait."""
        n, event = 1000 + each.attempt, choice.choice(NAMES)
        match choice.randrange(8):
            case 0:
                return "snooze", sleeps(each, 0.001, n=n)
            case 1 | 2:
                wanted: dict[str, Any] = choice.choice([{}, {"n": choice.randrange(3)}])
                return "snooze", waits(each, event, wanted, n=n, timeout=choice.choice([0.05, None]))
            case 3 | 4:
                approval = new_id()
                expiry: dict[str, Any] = {"expires_in": choice.choice([0.02, None]), "on_deny": "resume"}
                return "ask", asks(each, approval, n=n, quorum=choice.choice([1, 2]), **expiry)
            case _:
                outcome = choice.choice(ENDS)
                return TYPES[type(outcome)], decide(each, outcome, 0.0)

    def send_event(self, choice: random.Random, name: str) -> None:
        key = choice.choice([None, f"k-{choice.randrange(1000)}"])
        send(self.store, choice.choice(NAMES), {"n": choice.randrange(3)}, key=key)

    def decide(self, choice: random.Random, name: str) -> None:
        """Decide open approvals; all threads start with the same ones."""
        person = f"{name} {choice.getrandbits(32):x}"
        for each in approvals(self.store, limit=5):
            verdict: VoteVerdict = choice.choice(["approve", "approve", "deny"])
            result = say(self.store, each.id, ballot(person, verdict))
            if not result.refused and result.state != "open":
                self.confirmed[each.job_id, verdict, person] += 1

    def operate(self, choice: random.Random, name: str) -> None:
        operation: OperatorAction = choice.choice(["cancel", "redrive", "redrive", "discard"])
        ids = self.some(choice, choice.randint(1, 12))
        if operation != "cancel":
            dead = JobFilter(tenant="default", state=State.DEAD_LETTER, limit=12)
            ids += [job.id for job in self.store.run(self.store.jobs.list(dead)) if job.id not in ids]
            choice.shuffle(ids)
        for verdict in self.store.run(self.store.jobs.operate(operation, ids, "mix", name, "default")):
            if not verdict.refused:
                self.confirmed[verdict.id, operation, name] += 1

    def move(self, choice: random.Random, name: str) -> None:
        known = self.some(choice, 2)
        if len(known) < 2:
            return
        one, other = known
        moves = [Move.of(first=True), Move.of(before=other), Move.of(after=other), Move.of(priority=1)]
        verdict = self.store.run(self.store.jobs.move(one, choice.choice(moves), "mix", name, "default"))
        if not verdict.refused:
            self.confirmed[verdict.id, "move", name] += 1

    def sweep(self, choice: random.Random, name: str) -> None:
        for flow in (
            self.store.leases.recover(choice.choice([3, 1000])),
            self.store.leases.promote(choice.choice([3, 1000])),
            self.store.leases.expire(),
            self.store.approvals.attend(choice.choice([3, 1000])),
        ):
            self.store.run(flow)

    # -- together ----------------------------------------------------------------------------------------------------

    def run(self) -> int:
        sides: list[Callable[[random.Random, str], None]] = [
            *(self.produce, self.work, self.work, self.work, self.operate, self.operate, self.sweep, self.sweep),
            *(self.send_event, self.send_event, self.decide, self.decide),
            *(self.move, self.move),
        ]
        errors: list[BaseException] = []
        rounds: Counter[str] = Counter()
        began = time.monotonic()

        def continues() -> bool:
            """On a busy machine some threads need longer than `seconds` to run at all."""
            spent = time.monotonic() - began
            return spent < self.seconds or (not self.is_representative() and spent < self.seconds + 30)

        def run_side(side: Callable[[random.Random, str], None], name: str, seed: int) -> None:
            choice = random.Random(seed)
            try:
                while continues() and not errors:
                    side(choice, name)
                    rounds[name] += 1
                    time.sleep(choice.uniform(0.0, 0.01))  # SQLite's lock goes to the thread that tries most often
            except BaseException as error:
                errors.append(error)

        threads = [
            threading.Thread(target=run_side, args=(side, f"{side.__name__}-{n}", self.choice.getrandbits(32)))
            for n, side in enumerate(sides)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(self.seconds + 120)
        if errors:
            raise errors[0]
        assert not any(thread.is_alive() for thread in threads), "a thread waits forever"
        print(dict(rounds))
        return sum(rounds.values())


def deadlocks(url: str) -> int:
    if url.startswith("sqlite:"):
        return 0
    with closing(PostgresByHand(url)) as by_hand:
        ((count,),) = by_hand.execute("select deadlocks from pg_stat_database where datname = current_database()")
        return int(count)


@pytest.mark.parametrize("seconds", [3.0, pytest.param(60.0, marks=[pytest.mark.soak, pytest.mark.timeout(600)])])
@pytest.mark.sample(1)
def test_no_confirmed_operation_is_lost(url: str, choice: random.Random, seconds: float) -> None:
    with closing(open_store(url)) as store:
        store.migrate()
        mix = Mix(store, choice, seconds)
        assert mix.run() > 100
        snapshot = check(url, mix.ids, ended=False)
    # Rows are locked in the same order everywhere, so no deadlock occurs.
    assert deadlocks(url) == 0
    recorded = Counter((job, event.type, event.actor) for job, ledger in snapshot.ledgers.items() for event in ledger)
    lost = {operation: count for operation, count in mix.confirmed.items() if recorded[operation] != count}
    assert not lost, f"confirmed but not in the ledger as often: {list(lost.items())[:5]}"
    assert mix.is_representative(), (mix.confirmed, mix.saved_steps)
    stored = {(job, step.n) for job, steps in snapshot.steps.items() for step in steps}
    assert not mix.saved_steps - stored, "a step was confirmed and is not stored"
