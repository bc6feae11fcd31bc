"""Fault 34: twenty callers decide, cancel and let expire the same approvals: one decision each, and all agree on it.

Ten of them are threads with a store each, ten are in two other processes; a barrier between all of them lets them go
together for each approval.
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

ROUNDS, ROUNDS_EMBEDDED = 15, 6  # twenty who wait for one file's lock take their time
DECIDERS = 20
HERE = 10
AWAY = 5  # in each of the other processes
SIDES = ("approve", "deny", "approve", "cancel", "token", "approve", "deny", "deny", "token", "time")


@dataclass(frozen=True)
class Round:
    """One approval. In every third its time comes in that very moment."""

    job: str
    approval: str
    expires: datetime | None


Told = tuple[str, str, str]
"""Whoever was told that they ended a question: (approval, operation, who)."""


def decide(url: str, number: int, rounds: list[Round], barrier: Any) -> list[Told]:
    """One of the twenty; every one of them does the same in each round."""
    told: list[Told] = []
    name = SIDES[number % len(SIDES)]
    with closing(open_store(url)) as store:
        store.run(store.clock.now())  # connected
        for each in rounds:
            barrier.wait(60)
            if _WAYS[name](store, each, f"{name}-{number}"):
                told.append((each.approval, name, f"{name}-{number}"))
    return told


def _word(verdict: Any) -> Callable[[Store, Round, str], bool]:
    def speak(store: Store, each: Round, who: str) -> bool:
        answer = say(store, each.approval, ballot(who, verdict))
        assert answer.refused or answer.state != "open", "one word is enough here"
        return not answer.refused

    return speak


def _token(store: Store, each: Round, who: str) -> bool:
    """All who come this way hold the same token."""
    return not say(store, each.approval, ballot(who, token_hash=f"hash of {each.approval}")).refused


def _cancel(store: Store, each: Round, who: str) -> bool:
    return not store.run(store.jobs.operate("cancel", [each.job], None, who, "default"))[0].refused


def _time(store: Store, each: Round, who: str) -> bool:
    if each.expires is not None:
        store.run(store.clock.set(timedelta(0), each.expires))
    return attend(store) > 0


_WAYS = {"approve": _word("approve"), "deny": _word("deny"), "token": _token, "cancel": _cancel, "time": _time}


def decide_away(url: str, numbers: list[int], rounds: list[Round], barrier: Any, answers: Any) -> None:
    """In another process: a thread for each number."""
    answers.put([told for own in _threads(url, numbers, rounds, barrier) for told in own])


def _threads(url: str, numbers: list[int], rounds: list[Round], barrier: Any) -> Iterator[list[Told]]:
    own: list[list[Told]] = [[] for _ in numbers]
    errors: list[BaseException] = []

    def play(place: int) -> None:
        try:
            own[place] = decide(url, numbers[place], rounds, barrier)
        except threading.BrokenBarrierError:
            pass  # another has failed
        except BaseException as error:
            errors.append(error)
            barrier.abort()

    threads = [threading.Thread(target=play, args=(place,)) for place in range(len(numbers))]
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


def test_twenty_decide_at_once(url: str) -> None:
    with closing(open_store(url)) as store:
        store.migrate()
        rounds = ask(store, ROUNDS_EMBEDDED if store.embedded else ROUNDS)
        processes = context()
        barrier, answers = processes.Barrier(DECIDERS), processes.Queue()
        away = [
            processes.Process(
                target=decide_away, args=(url, list(range(first, first + AWAY)), rounds, barrier, answers), daemon=True
            )
            for first in range(HERE, DECIDERS, AWAY)
        ]
        for process in away:
            process.start()
        told = [each for own in _threads(url, list(range(HERE)), rounds, barrier) for each in own]
        for _ in away:
            told += answers.get(timeout=60)
        for process in away:
            process.join(20)
            assert process.exitcode == 0
        picture = check(url, [each.job for each in rounds], ended=False)
        ends: Counter[str] = Counter()
        by_approval: dict[str, list[tuple[str, str]]] = defaultdict(list)
        for approval_id, way, who in told:
            if way != "time":  # its answer counts approvals, and is not about this one
                by_approval[approval_id].append((way, who))
        for each in rounds:
            ways = [(step.type, step.actor) for step in picture.ledgers[each.job]][3:]  # after enqueue, take, ask
            decided, said = approval(store, each.approval), votes(store, each.approval)
            # A job that goes on can still be cancelled; nothing else comes after a decision.
            assert [event_type for event_type, _ in ways[1:]] in ([], ["cancel"]), ways
            expected = {(_type(way), who) for way, who in by_approval[each.approval]}
            assert {step for step in ways if step[0] != "expire"} == expected
            assert len(said) == (ways[0][0] in ("approve", "deny"))
            assert decided.state == {"approve": "approved", "deny": "denied", "cancel": "withdrawn"}.get(
                ways[0][0], "expired"
            )
            assert picture.rows[each.job].state is not State.WAITING_FOR_APPROVAL
            ends[ways[0][0]] += 1
        print(dict(ends))
        assert len(ends) > 1, "there was no race"


def _type(way: str) -> str:
    return "approve" if way == "token" else way
