"""Fault 34: twenty callers approve, deny, cancel and expire the same approvals: each gets one decision.

Ten callers are threads with a store each, ten are in two other processes; a barrier starts all of them together for
each approval.
"""

from __future__ import annotations

import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import pytest

from holdfast.engine.states import State
from holdfast.features.assembly import Store, open_store
from tests.faults.checker import check
from tests.support.forkserver import context
from tests.support.steps import approval, asks, attend, ballot, say, votes
from tests.support.stores import apply, claim, forward, new_id, open_lease, put, spec

pytestmark = pytest.mark.req("CX-7", "CX-6", "CX-11", "CX-1")

ROUNDS, ROUNDS_EMBEDDED = 15, 6  # on SQLite twenty callers wait for one lock
DECIDERS = 20
LOCAL_THREADS = 10
THREADS_PER_PROCESS = 5
ACTIONS = ("approve", "deny", "approve", "cancel", "token", "approve", "deny", "deny", "token", "time")


@dataclass(frozen=True)
class Round:
    """One approval. Every third expires at the moment of the race."""

    job: str
    approval: str
    expires: datetime | None


Decision = tuple[str, str, str]
"""A decision that was confirmed: (approval, action, caller)."""


def decide(url: str, number: int, rounds: list[Round], barrier: Any) -> list[Decision]:
    """One of the twenty callers; it has the same action in each round."""
    decisions: list[Decision] = []
    name = ACTIONS[number % len(ACTIONS)]
    with closing(open_store(url)) as store:
        store.run(store.clock.now())  # connect
        for each in rounds:
            barrier.wait(60)
            if _ACT[name](store, each, f"{name}-{number}"):
                decisions.append((each.approval, name, f"{name}-{number}"))
    return decisions


def _vote(verdict: Any) -> Callable[[Store, Round, str], bool]:
    def vote(store: Store, each: Round, who: str) -> bool:
        result = say(store, each.approval, ballot(who, verdict))
        assert result.refused or result.state != "open", "one vote decides"
        return not result.refused

    return vote


def _token(store: Store, each: Round, who: str) -> bool:
    """All callers with this action use the same token."""
    return not say(store, each.approval, ballot(who, token_hash=f"hash of {each.approval}")).refused


def _cancel(store: Store, each: Round, who: str) -> bool:
    return not store.run(store.jobs.operate("cancel", [each.job], None, who, "default"))[0].refused


def _time(store: Store, each: Round, who: str) -> bool:
    if each.expires is not None:
        store.run(store.clock.set(timedelta(0), each.expires))
    return attend(store) > 0


_ACT = {"approve": _vote("approve"), "deny": _vote("deny"), "token": _token, "cancel": _cancel, "time": _time}


def decide_in_process(url: str, numbers: list[int], rounds: list[Round], barrier: Any, queue: Any) -> None:
    """Runs in another process, with a thread for each number."""
    queue.put([decision for own in _threads(url, numbers, rounds, barrier) for decision in own])


def _threads(url: str, numbers: list[int], rounds: list[Round], barrier: Any) -> Iterator[list[Decision]]:
    own: list[list[Decision]] = [[] for _ in numbers]
    errors: list[BaseException] = []

    def run(index: int) -> None:
        try:
            own[index] = decide(url, numbers[index], rounds, barrier)
        except threading.BrokenBarrierError:
            pass  # another has failed
        except BaseException as error:
            errors.append(error)
            barrier.abort()

    threads = [threading.Thread(target=run, args=(index,)) for index in range(len(numbers))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    if errors:
        raise errors[0]
    yield from own


def ask(store: Store, count: int) -> list[Round]:
    start = forward(store)
    put(store, *(spec() for _ in range(count)))
    held = claim(store, open_lease(store, ttl=1e6), count)
    rounds = [
        Round(each.id, new_id(), start + timedelta(hours=n + 1) if n % 3 == 2 else None) for n, each in enumerate(held)
    ]
    spans = [None if each.expires is None else (each.expires - start).total_seconds() for each in rounds]
    settlements = [asks(h, r.approval, expires_in=span) for h, r, span in zip(held, rounds, spans, strict=True)]
    assert apply(store, held[0].lease, *settlements) == []
    for each in rounds:
        store.run(
            store.approvals.save_token(each.approval, f"hash of {each.approval}", None, None, "mailer", "default")
        )
    return rounds


def test_twenty_concurrent_callers_make_one_decision(url: str) -> None:
    with closing(open_store(url)) as store:
        store.migrate()
        rounds = ask(store, ROUNDS_EMBEDDED if store.embedded else ROUNDS)
        processes = context()
        barrier, queue = processes.Barrier(DECIDERS), processes.Queue()
        numbers = [list(range(n, n + THREADS_PER_PROCESS)) for n in range(LOCAL_THREADS, DECIDERS, THREADS_PER_PROCESS)]
        others = [
            processes.Process(target=decide_in_process, args=(url, own, rounds, barrier, queue), daemon=True)
            for own in numbers
        ]
        for process in others:
            process.start()
        decisions = [each for own in _threads(url, list(range(LOCAL_THREADS)), rounds, barrier) for each in own]
        for _ in others:
            decisions += queue.get(timeout=60)
        for process in others:
            process.join(20)
            assert process.exitcode == 0
        snapshot = check(url, [each.job for each in rounds], ended=False)
        ends: Counter[str] = Counter()
        by_approval: dict[str, list[tuple[str, str]]] = defaultdict(list)
        for approval_id, action, who in decisions:
            if action != "time":  # its result counts all approvals, not only this one
                by_approval[approval_id].append((action, who))
        for each in rounds:
            events = [(event.type, event.actor) for event in snapshot.ledgers[each.job]][3:]  # after enqueue, take, ask
            decided, cast = approval(store, each.approval), votes(store, each.approval)
            # A resumed job can still be cancelled; nothing else follows a decision.
            assert [event_type for event_type, _ in events[1:]] in ([], ["cancel"]), events
            expected = {(_type(action), who) for action, who in by_approval[each.approval]}
            assert {event for event in events if event[0] != "expire"} == expected
            assert len(cast) == (events[0][0] in ("approve", "deny"))
            assert decided.state == {"approve": "approved", "deny": "denied", "cancel": "withdrawn"}.get(
                events[0][0], "expired"
            )
            assert snapshot.rows[each.job].state is not State.WAITING_FOR_APPROVAL
            ends[events[0][0]] += 1
        print(dict(ends))
        # On SQLite the local thread that approves often gets the lock of the file first, in all of the few rounds.
        assert store.embedded or len(ends) > 1, "there was no race"


def _type(action: str) -> str:
    return "approve" if action == "token" else action
